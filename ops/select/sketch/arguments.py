"""What the kernels for sketches work on. Imports no Numba."""

from typing import NamedTuple

from ....jit.launch.arguments import (
    F32_1D,
    F32_2D,
    F32_3D,
    I8_4D,
    I64_1D,
    I64_2D,
    U8_2D,
    U8_3D,
    U32_2D,
    U64_2D,
    U64_4D,
)
from ...attention.layout import StoredLayout
from ..choice import Candidates


class Keys(NamedTuple):
    """Stored keys, and where their sketches go. segments, bits, factors: addresses."""

    segments: I64_1D
    layout: StoredLayout
    bits: I64_1D
    factors: I64_1D
    rotation: F32_1D
    works: F32_2D
    """Of each thread: a key and its rotation."""


class Query(NamedTuple):
    """One token's query heads (1, H, E), what they choose from, and the lists they fill."""

    q: F32_3D
    segments: I64_1D
    bits: I64_1D
    factors: I64_1D
    rotation: F32_1D
    lists: U32_2D
    counts: I64_1D


class Scan(NamedTuple):
    """What a pass over the sketches writes for two segments in turn; of each thread."""

    limits: U8_3D
    """int8 [query][64]: the least sums that can reach a query's limit, less one."""
    masks: U64_4D
    """[turn][query][word]: tokens whose sums do."""
    sums: I8_4D
    """[turn][query][token]"""


class Products(NamedTuple):
    """Scratch of exact products with listed keys; of each thread."""

    rows: F32_3D
    """The query heads of a KV head, laid out as its keys are."""
    rooms: U8_2D
    works: U8_2D


class Scratch(NamedTuple):
    """Of each thread."""

    products: Products
    turned: F32_3D
    """A query head, and its rotation."""
    tables: I8_4D
    """[query][half byte][16]: sums of signs, see `queries`."""
    scan: Scan
    order: I64_2D
    """Segments, in the order of a pass."""
    found: Candidates
    chosen: U64_2D
    """Marks of all rounds of queries."""


class Wanted(NamedTuple):
    """The k largest products of the `few` best estimates; seed decides between equal ones."""

    k: int
    few: int
    seed: int
