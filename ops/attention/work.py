"""Scratch memory of the kernels of attention: sizes, and its allocation. Imports no Numba."""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from ...jit.arena import aligned
from ..errors import OpsError
from .arguments import BlockOutputs
from .layout import SEGMENT, TILE, TileLayout

HEAD_SCORES = 4 * SEGMENT  # bytes of one head's scores
HEAD_PARTS = 16 * 4 * 4  # bytes of one head's partial sums
PARTS_BYTES = 2 * 4 * HEAD_PARTS
TILE_SCALES = 4 * TILE * 32  # bytes of a tile's scales as floats, at most
TILE_SCORES = 4 * TILE  # bytes of one head's scores of a tile
WORK_BYTES = 4 * HEAD_SCORES + PARTS_BYTES + TILE_SCALES
"""Scores of a segment's keys for up to four query heads, partial sums, and a tile's scales."""
TILE_WORK = PARTS_BYTES + TILE_SCALES + 4 * TILE_SCORES
"""For attention over a tile with up to four query heads: partial sums, its scales, its scores."""
PREFETCH_TILES = 2
"""Tiles between a prefetch and its use: about the time that memory takes to answer."""
KEY_TILES = 4
"""Tiles between a prefetch and its use in kernels that read only keys."""
MOST_TILES = max(PREFETCH_TILES, KEY_TILES)
"""Tiles of listed rows whose addresses are known ahead, at most."""
HIDDEN = -1e30
"""The score of a key that a query does not see: its exponential is 0."""
ADDRESSES = 8 * 3 * TILE
"""Bytes of the addresses of 16 listed tokens' keys, values and scales."""

_HEADS = 4
"""Query heads that share one pass over the keys, at most."""

ROWS = 96
"""Query rows of a block of a chunk: a multiple of every panel's height."""
MOST_KEYS = 128
"""Keys of a block of a chunk, at most."""


def token_work_bytes(padded: int, rows: int) -> int:
    """Bytes for one new token, `rows` query heads per KV head: a tile's work, totals, queries."""
    return TILE_WORK + rows * (TILE_SCORES + 4 * padded)


def gathered_work_bytes(tile_bytes: int) -> int:
    """Bytes for listed tokens: addresses of the next ones, and a tile for copies of their rows."""
    return MOST_TILES * ADDRESSES + tile_bytes


def chunk_work_floats(padded: int) -> int:
    """Floats for a chunk of new tokens, with rows of `padded` elements."""
    return 2 * ROWS * padded + 2 * MOST_KEYS * padded + MOST_KEYS * ROWS + 2 * ROWS


def rounds_of(n_heads: int, n_kv_heads: int) -> tuple[int, int]:
    """The rounds in which a KV head's query heads are computed, and the heads of a round (1 to 4).

    Raises OpsError where query heads cannot share the KV heads evenly.
    """
    if n_kv_heads < 1 or n_heads % n_kv_heads:
        raise OpsError(
            f"attention: {n_heads} query heads cannot share {n_kv_heads} KV heads evenly"
        )
    group = n_heads // n_kv_heads
    rounds = -(-group // _HEADS)
    return rounds, -(-group // rounds)


def heads_at_once(n_heads: int, n_kv_heads: int) -> int:
    """Of the query heads that share a KV head, those whose rows of a token are in one block of
    `ROWS`: all of them, or where they are more, an equal part."""
    group = n_heads // n_kv_heads
    return next(group // n for n in range(-(-group // ROWS), group + 1) if group % n == 0)


def block_outputs(n_blocks: int, n_heads: int, n_kv_heads: int, padded: int) -> BlockOutputs:
    """Uninitialised memory for the outputs of `n_blocks` blocks of tokens."""
    rounds, heads = rounds_of(n_heads, n_kv_heads)
    shape = n_blocks, n_kv_heads, rounds * heads
    return BlockOutputs(
        sums=aligned((*shape, padded), np.float32),
        maxima=np.empty(shape, np.float32),
        totals=np.empty(shape, np.float32),
        merged=aligned((n_heads, padded), np.float32),
    )


class Scratch(ABC):
    """Memory of an operation, for each thread.

    Query heads that share a KV head are computed up to 4 at a time (`heads`), in `rounds` rounds.
    """

    def __init__(self, n_heads: int, n_kv_heads: int, layout: TileLayout) -> None:
        self.rounds, self.heads = rounds_of(n_heads, n_kv_heads)
        self.n_heads, self.n_kv_heads, self.layout = n_heads, n_kv_heads, layout
        self.threads = 0

    def ready(self, threads: int) -> None:
        """Have memory for each of `threads` threads."""
        if threads > self.threads:
            self._allocate(threads)
            self.threads = threads

    @abstractmethod
    def _allocate(self, threads: int) -> None: ...

    def _token_works(self, threads: int) -> npt.NDArray[np.uint8]:
        n_bytes = token_work_bytes(self.layout.padded, self.rounds * self.heads)
        works: npt.NDArray[np.uint8] = aligned((threads, n_bytes), np.uint8)
        return works

    def _chunk_works(self, threads: int) -> npt.NDArray[np.float32]:
        n = -(-chunk_work_floats(self.layout.padded) // 16) * 16
        works: npt.NDArray[np.float32] = aligned((threads, n), np.float32)
        return works
