"""The layout of a KV cache: rows, tiles, segments. Imports no Numba.

A layer's cache is a list of segments of 1,024 tokens, in RAM or in a mapped file:

    segment  = [kv head 0: 64 tiles][kv head 1: 64 tiles] ...
    tile     = [16 K rows][16 V rows][16 scale rows][zeros up to a multiple of 64 bytes]
    row      = head_dim elements, padded with zeros to a multiple of 32
               f16   2 bytes an element
               q8_0  1 byte an element, block of 32 = 32 x int8
               q4_0  block of 32 = 16 bytes; byte i holds element i in its low and element
                     i + 16 in its high nibble, value = nibble - 8
    scale row = f16 scale of each K block, then of each V block (a type without scales has none)

Tile of head_dim 64, both q8_0 (2,176 bytes):

       0  K row 0  (64 x int8)      1024  V row 0  (64 x int8)      2048  K0 K1 V0 V1 of token 0
      64  K row 1                   1088  V row 1                   2056  K0 K1 V0 V1 of token 1
     ...                             ...                             ...
     960  K row 15                  2032  V row 15                  2168  K0 K1 V0 V1 of token 15

With f16 the scales are absent and the tile is exactly 4,096 bytes.

Rows of more than 512 elements, those of latent attention, are keys and values at once and stored
once (`SharedLayout`):

    tile     = [16 rows][16 scale rows][zeros up to a multiple of 64 bytes]

Whoever reads keys or values by the numbers of a layout finds the same bytes for both.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from ..errors import OpsError

TILE = 16  # tokens
SEGMENT = 1024  # tokens; also decode's unit of work, for any number of threads
BLOCK = 32  # elements that share a scale
TILES = SEGMENT // TILE

F16, Q8_0, Q4_0 = 0, 1, 2  # codes of the KV types, for which kernels are specialised
SHARED = 3  # in place of the code of V: values are keys
MAX_APART, MAX_SHARED = 512, 1024  # elements of a row, where K and V stand apart, or are one


class KVType(NamedTuple):
    """A way to store 32 elements of a K or V row."""

    code: int
    name: str
    block_bytes: int
    """Bytes of a block of 32, without its scale."""
    scale_bytes: int
    """Bytes of a block's scale; 0: the type has none."""
    rotated: bool
    """Rows are stored after a Hadamard rotation."""


_TYPES = (
    KVType(F16, "f16", block_bytes=64, scale_bytes=0, rotated=False),
    KVType(Q8_0, "q8_0", block_bytes=32, scale_bytes=2, rotated=False),
    KVType(Q4_0, "q4_0", block_bytes=16, scale_bytes=2, rotated=True),
)
KV_TYPES = {t.name: t for t in _TYPES}


def kv_type(code: int) -> KVType:
    """The KV type of a code."""
    return _TYPES[code]


@dataclass(frozen=True)
class TileLayout:
    """Types of K and V and length of a row, which determine the place of each byte in a segment.

    Raises OpsError for a type or head_dim (8 to 512) that no kernel serves.
    """

    head_dim: int
    k_type: str = "f16"
    v_type: str = "f16"

    def __post_init__(self) -> None:
        for side, name in (("K", self.k_type), ("V", self.v_type)):
            if name not in KV_TYPES:
                known = ", ".join(KV_TYPES)
                raise OpsError(f"KV cache: unknown type {name!r} for {side}; use one of {known}")
        if not 8 <= self.head_dim <= MAX_APART:
            raise OpsError(f"KV cache: head_dim is {self.head_dim}; 8 to {MAX_APART} is supported")

    @property
    def _k(self) -> KVType:
        return KV_TYPES[self.k_type]

    @property
    def _v(self) -> KVType:
        return KV_TYPES[self.v_type]

    @cached_property
    def blocks(self) -> int:
        """Blocks of 32 elements in a row."""
        return -(-self.head_dim // BLOCK)

    @cached_property
    def padded(self) -> int:
        """Elements of a row, padding included."""
        return self.blocks * BLOCK

    @cached_property
    def k_row_bytes(self) -> int:
        """Bytes from one K row to the next."""
        return self.blocks * self._k.block_bytes

    @cached_property
    def v_row_bytes(self) -> int:
        """Bytes from one V row to the next."""
        return self.blocks * self._v.block_bytes

    @cached_property
    def v_offset(self) -> int:
        """Byte of the first V row in a tile; K rows start at 0."""
        return TILE * self.k_row_bytes

    @cached_property
    def scale_offset(self) -> int:
        """Byte of the first scale row in a tile."""
        return self.v_offset + TILE * self.v_row_bytes

    @cached_property
    def v_scale(self) -> int:
        """Byte of the first V scale in a scale row."""
        return self.blocks * self._k.scale_bytes

    @cached_property
    def scale_row_bytes(self) -> int:
        """Bytes from one scale row to the next."""
        return self.v_scale + self.blocks * self._v.scale_bytes

    @cached_property
    def tile_bytes(self) -> int:
        """Bytes of one tile: 16 tokens of one KV head, a multiple of 64."""
        return -(-(self.scale_offset + TILE * self.scale_row_bytes) // 64) * 64

    @cached_property
    def head_bytes(self) -> int:
        """Bytes of one KV head in one segment."""
        return TILES * self.tile_bytes

    def segment_bytes(self, n_kv_heads: int) -> int:
        """Bytes of one segment: 1,024 tokens of all KV heads of a layer."""
        return n_kv_heads * self.head_bytes

    @cached_property
    def rotates_k(self) -> bool:
        """K is stored (and q multiplied) after a Hadamard rotation of the row."""
        return self._k.rotated

    @cached_property
    def rotates_v(self) -> bool:
        """V is stored after a Hadamard rotation of the row; the output is rotated back."""
        return self._v.rotated

    @cached_property
    def rotation(self) -> int:
        """Length of one rotated block: the largest power of two that divides the row."""
        return self.padded & -self.padded

    @cached_property
    def codes(self) -> tuple[int, int, int]:
        """(k, v, blocks), for which kernels are specialised."""
        return self._k.code, self._v.code, self.blocks

    @cached_property
    def output_codes(self) -> tuple[int, int, int]:
        """`codes` for which kernels that merge outputs are specialised: the same for all types of
        K, and of V that are not rotated."""
        return F16, self._v.code if self.rotates_v else F16, self.blocks


@dataclass(frozen=True)
class SharedLayout(TileLayout):
    """A `TileLayout` in which the value of a token is its key.

    Raises OpsError for two types, or a row that no kernel serves.
    """

    def __post_init__(self) -> None:
        if self.k_type not in KV_TYPES:
            known = ", ".join(KV_TYPES)
            raise OpsError(f"KV cache: unknown type {self.k_type!r}; use one of {known}")
        if self.v_type != self.k_type:
            raise OpsError(
                f"KV cache: rows of {self.head_dim} are keys and values at once, found types "
                f"{self.k_type}/{self.v_type}, expected one type"
            )
        if not MAX_APART < self.head_dim <= MAX_SHARED:
            raise OpsError(
                f"KV cache: rows of {self.head_dim}; {MAX_APART + 1} to {MAX_SHARED} is supported"
            )

    @cached_property
    def v_offset(self) -> int:
        """Byte of the first row."""
        return 0

    @cached_property
    def v_scale(self) -> int:
        """Byte of the first scale in a scale row."""
        return 0

    @cached_property
    def codes(self) -> tuple[int, int, int]:
        """(k, `SHARED`, blocks)."""
        return self._k.code, SHARED, self.blocks

    @cached_property
    def output_codes(self) -> tuple[int, int, int]:
        """As of a `TileLayout`."""
        return self._k.code if self.rotates_k else F16, SHARED, self.blocks


def layout_of(head_dim: int, k_type: str, v_type: str) -> TileLayout:
    """How keys and values of this size are stored: rows that are too long for two, once."""
    kind = SharedLayout if head_dim > MAX_APART else TileLayout
    return kind(head_dim, k_type, v_type)


def n_segments(n_tokens: int) -> int:
    """Segments that hold `n_tokens` tokens."""
    return -(-n_tokens // SEGMENT)


class StoredLayout(NamedTuple):
    """A TileLayout as numbers, for kernels that serve every layout; the types are codes."""

    k_type: int
    v_type: int
    blocks: int
    rotates_k: int
    rotates_v: int
    rotation: int
    tile_bytes: int
    head_bytes: int
    k_row_bytes: int
    v_row_bytes: int
    v_offset: int
    scale_offset: int
    v_scale: int
    scale_row_bytes: int


@cache
def stored_layout(layout: TileLayout) -> StoredLayout:
    """The StoredLayout of a TileLayout; one for all callers."""
    names = StoredLayout._fields[3:]
    types = KV_TYPES[layout.k_type].code, KV_TYPES[layout.v_type].code
    return StoredLayout(*types, layout.blocks, *(int(getattr(layout, name)) for name in names))
