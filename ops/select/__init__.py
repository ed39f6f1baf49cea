"""Choosing the tokens that each KV head attends to: k of each of its query heads, and their union.

    signatures  the k nearest by Hamming distance       HashAttention, SimHash     method `hash`
    exact       the k largest q . k of all keys         top-k attention            `topk`, flat
    sketch      candidates by estimates of q . k,       RaBitQ                     `topk`
                then the k largest q . k among them
    blocks      the same, without scanning the blocks                              `topk`, 2 levels
                of keys whose mean rules them out
    tables      a random draw: what agrees with a      LSH sampling (MagicPIG)    `magicpig`
                query in two of many hash tables

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
    SignatureScratch,
    encode_keys,
    encode_rows,
    hyperplanes,
    nearest,
    simhash_network,
)
from .sketch import Rotation, SketchScratch, best_sketched, mean_keys, sketch_bits, sketch_keys
from .tables import (
    DrawScratch,
    Hashing,
    Tables,
    TableStore,
    draw,
    hash_keys,
    sort_runs,
    table_planes,
)

__all__ = [
    "BlockScratch",
    "DrawScratch",
    "ExactScratch",
    "Hashing",
    "Network",
    "Range",
    "Rotation",
    "SignatureScratch",
    "SketchScratch",
    "TableStore",
    "Tables",
    "best_in_blocks",
    "best_sketched",
    "block_item_bytes",
    "block_keys",
    "draw",
    "encode_keys",
    "encode_rows",
    "hash_keys",
    "hyperplanes",
    "largest",
    "mean_keys",
    "nearest",
    "products",
    "simhash_network",
    "sketch_bits",
    "sketch_keys",
    "sort_runs",
    "table_planes",
]
