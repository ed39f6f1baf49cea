"""Choosing the tokens that a query reads: signatures, their scan, exact top-k, lists of tokens.

Every choice is exact and the same for any number of threads; equal scores are decided by seeded
hashes of positions, not by age. What is chosen is read by `ops.attention.gathered_attention`.
"""

from .blocks import BlockScratch, best_in_blocks, block_item_bytes, block_keys
from .choice import Range
from .exact import ExactScratch, largest, products
from .signatures import (
    Network,
    SignatureScratch,
    encode_keys,
    encode_rows,
    hyperplanes,
    nearest,
    simhash_network,
)
from .sketch import Rotation, SketchScratch, best_sketched, sketch_bits, sketch_keys
from .warm import warm

__all__ = [
    "BlockScratch",
    "ExactScratch",
    "Network",
    "Range",
    "Rotation",
    "SignatureScratch",
    "SketchScratch",
    "best_in_blocks",
    "best_sketched",
    "block_item_bytes",
    "block_keys",
    "encode_keys",
    "encode_rows",
    "hyperplanes",
    "largest",
    "nearest",
    "products",
    "simhash_network",
    "sketch_bits",
    "sketch_keys",
    "warm",
]
