"""Decoding and reading after long contexts, exact and sparse, with llama.cpp where it can go."""
