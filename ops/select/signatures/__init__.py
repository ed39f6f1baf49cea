"""Signatures: keys and queries as bits, compared by Hamming distance (SimHash, HashAttention)."""

from .api import Network, SignatureScratch, encode_keys, encode_rows, nearest

__all__ = ["Network", "SignatureScratch", "encode_keys", "encode_rows", "nearest"]
