"""Choosing the tokens that each KV head attends to: k of each of its query heads, and their union.

    signatures  the k nearest by Hamming distance,      HashAttention, SimHash     method `hash`
                or the k largest q . k among some
                times as many
    exact       the k largest q . k of all keys         top-k attention            `topk`, flat
    sketch      candidates by estimates of q . k,       RaBitQ                     `topk`
                then the k largest q . k among them
    means       none: a block counts as one token for   RetroInfer              `topk --tail means`
                what was not chosen of them
    tables      a random draw: what agrees with a      LSH sampling (MagicPIG)    `magicpig`
                query in two of many hash tables

All choices are exact in these terms and the same for any number of threads. Seeded hashes of
positions break ties, not age. `ops.attention.gathered_attention` reads the lists that result.

Shared parts, from the wrapper to the list: `choice` (scratch, checks), `queries`, `sampling` (first
limits), `masks` (which tokens of a segment pass), `best` and `narrow` (candidates), `rerank`
(exact products of candidates), `lists`; `lookup`, `dense`, `scores` and `prefetch` hold inner
operations.
"""

from .choice import Lists as Lists
from .choice import Range as Range
from .choice import Wanted as Wanted
from .choice import taken_words as taken_words
from .exact.api import ExactScratch as ExactScratch
from .exact.api import largest as largest
from .exact.api import products as products
from .means.api import MeansScratch as MeansScratch
from .means.api import RowMeansScratch as RowMeansScratch
from .means.api import add_means as add_means
from .means.api import add_row_means as add_row_means
from .means.api import block_means as block_means
from .means.layout import means_item_bytes as means_item_bytes
from .signatures.arguments import SignedKeys as SignedKeys
from .signatures.choose import RerankedScratch as RerankedScratch
from .signatures.choose import RowRerankedScratch as RowRerankedScratch
from .signatures.choose import RowSignatureScratch as RowSignatureScratch
from .signatures.choose import SignatureScratch as SignatureScratch
from .signatures.choose import SignedQueries as SignedQueries
from .signatures.choose import best_signed as best_signed
from .signatures.choose import best_signed_rows as best_signed_rows
from .signatures.choose import nearest as nearest
from .signatures.choose import nearest_rows as nearest_rows
from .signatures.network import Network as Network
from .signatures.network import encode_heads as encode_heads
from .signatures.network import encode_keys as encode_keys
from .signatures.network import encode_rows as encode_rows
from .signatures.network import encode_slots as encode_slots
from .signatures.network import hyperplanes as hyperplanes
from .signatures.network import simhash_network as simhash_network
from .sketch.arguments import Frame as Frame
from .sketch.arguments import Rotation as Rotation
from .sketch.arguments import SketchedKeys as SketchedKeys
from .sketch.arguments import sketch_bits as sketch_bits
from .sketch.index import key_moments as key_moments
from .sketch.index import moments_of as moments_of
from .sketch.index import sketch_keys as sketch_keys
from .sketch.index import sketch_slots as sketch_slots
from .sketch.search import RowSketchScratch as RowSketchScratch
from .sketch.search import SketchScratch as SketchScratch
from .sketch.search import best_sketched as best_sketched
from .sketch.search import best_sketched_rows as best_sketched_rows
from .tables.api import DrawScratch as DrawScratch
from .tables.api import TableStore as TableStore
from .tables.api import draw as draw
from .tables.api import hash_keys as hash_keys
from .tables.api import sort_runs as sort_runs
from .tables.planes import Hashing as Hashing
from .tables.planes import Tables as Tables
from .tables.planes import table_planes as table_planes
