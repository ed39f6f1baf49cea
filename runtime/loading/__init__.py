"""From a GGUF file to a loaded model: the default model, the check of memory, fingerprints."""
