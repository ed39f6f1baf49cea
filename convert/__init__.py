"""What makes model files: pulled from a hub, converted from Hugging Face's layout to GGUF.

Stands on `runtime/` and is imported by no other room; libraries it needs are imported when used.
"""
