"""Choosing the tokens that each KV head attends to: k of each of its query heads, and their union.

    signatures  the k nearest by Hamming distance       HashAttention, SimHash     method `hash`
    exact       the k largest q . k of all keys         top-k attention            `topk`, flat
    sketch      candidates by estimates of q . k,       RaBitQ                     `topk`
                then the k largest q . k among them
    blocks      the same, without scanning the blocks                              `topk`, 2 levels
                of keys whose mean rules them out

All choices are exact in these terms and the same for any number of threads. Seeded hashes of
positions break ties, not age. `ops.attention.gathered_attention` reads the lists that result.

Shared parts, from the wrapper to the list: `choice` (scratch, checks), `queries` (what is made of
queries), `sampling` (first limits), `masks` (which tokens of a segment pass), `best` (candidates),
`lists`; `lookup`, `dense`, `scores` and `prefetch` hold inner operations.
"""

from .blocks import BlockScratch, best_in_blocks, block_item_bytes, block_keys
from .choice import Range
from .exact import ExactScratch, largest, products
from .signatures import (
    Network,
    RowSignatureScratch,
    SignatureScratch,
    encode_heads,
    encode_keys,
    encode_rows,
    hyperplanes,
    nearest,
    nearest_rows,
    simhash_network,
)
from .sketch import Rotation, SketchScratch, best_sketched, sketch_bits, sketch_keys

__all__ = [
    "BlockScratch",
    "ExactScratch",
    "Network",
    "Range",
    "Rotation",
    "RowSignatureScratch",
    "SignatureScratch",
    "SketchScratch",
    "best_in_blocks",
    "best_sketched",
    "block_item_bytes",
    "block_keys",
    "encode_heads",
    "encode_keys",
    "encode_rows",
    "hyperplanes",
    "largest",
    "nearest",
    "nearest_rows",
    "products",
    "simhash_network",
    "sketch_bits",
    "sketch_keys",
]
