"""From a GGUF file to a loaded model: which file is taken, is there memory, what tells it apart."""
