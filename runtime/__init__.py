"""Ties files, models and methods together: GGUF, tokenizers, stores, contexts, generation.

Importing this package does not import Numba; the modules that compute do.
"""
