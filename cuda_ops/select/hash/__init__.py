"""Signatures on a GPU: encoding keys and queries, and the nearest by Hamming distance."""

from .encoders import Encoders, EncodeScratch, encode
from .choice import SignatureScratch, nearest

__all__ = ["EncodeScratch", "Encoders", "SignatureScratch", "encode", "nearest"]
