"""Signatures on a GPU: encoding keys and queries, and the nearest by Hamming distance."""

from .encode import Encoders, EncodeScratch, encode
from .nearest import SignatureScratch, nearest

__all__ = ["EncodeScratch", "Encoders", "SignatureScratch", "encode", "nearest"]
