"""Loads a GGUF file as a model: the default model, the check of memory, fingerprints."""
