"""Choosing the tokens that each KV head attends to: k of each of its query heads, and their union.

    signatures  the k nearest by Hamming distance,      HashAttention, SimHash     method `hash`
                or the k largest q . k among some
                times as many
    exact       the k largest q . k of all keys         top-k attention            `topk`, flat
    sketch      candidates by estimates of q . k,       RaBitQ                     `topk`
                then the k largest q . k among them
    blocks      the same, without scanning the blocks                              `topk`, 2 levels
                of keys whose mean rules them out
    means       none: a block counts as one token for   RetroInfer              `topk --tail means`
                what was not chosen of them
    tables      a random draw: what agrees with a      LSH sampling (MagicPIG)    `magicpig`
                query in two of many hash tables

All choices are exact in these terms and the same for any number of threads. Seeded hashes of
positions break ties, not age. `ops.attention.gathered_attention` reads the lists that result.

Shared parts, from the wrapper to the list: `choice` (scratch, checks), `queries` (what is made of
queries), `sampling` (first limits), `masks` (which tokens of a segment pass), `best` (candidates),
`lists`; `lookup`, `dense`, `scores`, `mass` and `prefetch` hold inner operations.
"""

from .blocks import BlockedKeys, BlockScratch, best_in_blocks, block_item_bytes, block_keys
from .choice import Lists, Range, taken_words
from .exact import ExactScratch, largest, products
from .means import (
    MeansScratch,
    RowMeansScratch,
    add_means,
    add_row_means,
    block_means,
    means_item_bytes,
)
from .rerank import Wanted
from .signatures import (
    Network,
    RerankedScratch,
    RowRerankedScratch,
    RowSignatureScratch,
    SignatureScratch,
    SignedKeys,
    SignedQueries,
    best_signed,
    best_signed_rows,
    encode_heads,
    encode_keys,
    encode_rows,
    encode_slots,
    hyperplanes,
    nearest,
    nearest_rows,
    simhash_network,
)
from .sketch import (
    Rotation,
    RowSketchScratch,
    SketchedKeys,
    SketchScratch,
    best_sketched,
    best_sketched_rows,
    mean_keys,
    sketch_bits,
    sketch_keys,
    sketch_slots,
)
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
    "BlockedKeys",
    "DrawScratch",
    "ExactScratch",
    "Hashing",
    "Lists",
    "MeansScratch",
    "Network",
    "Range",
    "RerankedScratch",
    "Rotation",
    "RowMeansScratch",
    "RowRerankedScratch",
    "RowSignatureScratch",
    "RowSketchScratch",
    "SignatureScratch",
    "SignedKeys",
    "SignedQueries",
    "SketchScratch",
    "SketchedKeys",
    "TableStore",
    "Tables",
    "Wanted",
    "add_means",
    "add_row_means",
    "best_in_blocks",
    "best_signed",
    "best_signed_rows",
    "best_sketched",
    "best_sketched_rows",
    "block_item_bytes",
    "block_keys",
    "block_means",
    "draw",
    "encode_heads",
    "encode_keys",
    "encode_rows",
    "encode_slots",
    "hash_keys",
    "hyperplanes",
    "largest",
    "mean_keys",
    "means_item_bytes",
    "nearest",
    "nearest_rows",
    "products",
    "simhash_network",
    "sketch_bits",
    "sketch_keys",
    "sketch_slots",
    "sort_runs",
    "table_planes",
    "taken_words",
]
