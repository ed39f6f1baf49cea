"""`kvarn learn`: hash encoders for a model, learned from its own queries and keys (HashAttention).

The model reads text with its usual kernels; after each chunk, networks in torch take a step on a
few of its queries and the keys stored so far. `learning.Learning` is all of it.
"""
