"""What a folder that Hugging Face's libraries wrote has: JSON files, and tensors in shards."""
