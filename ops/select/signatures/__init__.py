"""Signatures: keys and queries as bits, compared by Hamming distance (HashAttention, SimHash)."""

from .api import (
    Network,
    SignatureScratch,
    encode_keys,
    encode_rows,
    encode_slots,
    encoder_of,
    nearest,
)
from .simhash import hyperplanes, simhash_network

__all__ = [
    "Network",
    "SignatureScratch",
    "encode_keys",
    "encode_rows",
    "encode_slots",
    "encoder_of",
    "hyperplanes",
    "nearest",
    "simhash_network",
]
