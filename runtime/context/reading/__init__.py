"""Tokens that are read into a KV cache: prompts as ids, in slices, pass by pass."""
