"""Signatures on a GPU: encoding keys and queries, and the nearest by Hamming distance."""

from .choice import SignatureScratch as SignatureScratch
from .choice import nearest as nearest
from .encoders import encoders_of as encoders_of
