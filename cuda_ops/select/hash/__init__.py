"""Signatures on a GPU: encoding keys and queries, and the nearest by Hamming distance."""

from .nearest import SignatureScratch, nearest

__all__ = ["SignatureScratch", "nearest"]
