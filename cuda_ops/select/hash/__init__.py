"""Signatures on a GPU: encoding keys and queries, and the nearest by Hamming distance."""

from .choice import SignatureScratch, nearest
from .encoders import Encoders, EncodeScratch, encode
from .resident import Signatures

__all__ = ["EncodeScratch", "Encoders", "SignatureScratch", "Signatures", "encode", "nearest"]
