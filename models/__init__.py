"""Architectures: configuration from GGUF metadata and one forward pass with described differences.

Knows nothing of files or methods: it is given mappings of metadata and tensors, and an attention object.
"""
