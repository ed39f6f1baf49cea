"""Signatures: keys and queries as bits, compared by Hamming distance (HashAttention, SimHash)."""

from .api import (
    Network,
    SignatureScratch,
    encode_heads,
    encode_keys,
    encode_rows,
    encode_slots,
    encoder_of,
    nearest,
)
from .reranked import (
    RerankedScratch,
    RowRerankedScratch,
    SignedKeys,
    SignedQueries,
    best_signed,
    best_signed_rows,
)
from .rows_api import RowSignatureScratch, nearest_rows
from .simhash import hyperplanes, simhash_network

__all__ = [
    "Network",
    "RerankedScratch",
    "RowRerankedScratch",
    "RowSignatureScratch",
    "SignatureScratch",
    "SignedKeys",
    "SignedQueries",
    "best_signed",
    "best_signed_rows",
    "encode_heads",
    "encode_keys",
    "encode_rows",
    "encode_slots",
    "encoder_of",
    "hyperplanes",
    "nearest",
    "nearest_rows",
    "simhash_network",
]
