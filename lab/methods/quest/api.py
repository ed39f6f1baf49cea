"""The checking wrappers of the boxes of tiles: building them, and choosing by them."""

import numpy as np

from kvarn.jit.arena import aligned
from kvarn.jit.launch import Arguments
from kvarn.jit.threads import n_threads
from kvarn.ops.arrays import F32, I64, U32
from kvarn.ops.attention.layout import SEGMENT, TILE, TILES, TileLayout, stored_layout
from kvarn.ops.errors import OpsError
from kvarn.ops.select.choice import (
    Lists,
    Range,
    SelectScratch,
    check_choice,
    check_query,
    check_stored,
)

from .arguments import Keys, Query, Scratch
from .layout import dimensions_of

_SERIAL_TOKENS = 2 * TILE  # whose boxes cost less than waking the threads

_keys = Arguments(Keys)


def bound_tiles(
    segments: I64, layout: TileLayout, n_kv_heads: int, items: I64, first: int, last: int
) -> None:
    """Write the boxes of the tiles that hold tokens first .. last-1, of their tokens below last.

    items: base addresses of the segments of a column of `tile_item_bytes`; see `layout`.
    """
    check_stored("boxes: tokens", first, last, SEGMENT * min(len(segments), len(items)))
    if first == last:
        return
    from .build import bound_tiles_kernel

    works = aligned((n_threads(), 3 * 256), np.float32)
    works[:] = 0  # what rows have beyond head_dim
    keys = Keys(segments=segments, layout=stored_layout(layout), items=items, works=works)
    dimensions, parallel = dimensions_of(layout.head_dim), last - first > _SERIAL_TOKENS
    bound_tiles_kernel(_keys.fill(keys), n_kv_heads, dimensions, first, last, parallel=parallel)


class TileScratch(SelectScratch):
    """Memory for `highest_tiles`."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int, layout: TileLayout
    ) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, k)
        self.head_dim, self.dimensions = layout.head_dim, dimensions_of(layout.head_dim)

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        n = self.together
        scratch = Scratch(
            queries=aligned((threads, n, self.dimensions), np.float32),
            lines=np.zeros((threads, n, self.dimensions), np.int64),
            slack=np.zeros((threads, n), np.float32),
            bounds=aligned((threads, TILES), np.float32),
            candidates=self.candidates,
        )
        self.query, self.arguments = Arguments(Query), Arguments.fixed(scratch)


def highest_tiles(
    q: F32,
    items: I64,
    among: Range,
    k: int,
    index: U32,
    counts: I64,
    *,
    seed: int,
    scratch: TileScratch,
) -> None:
    """Lists of tokens: those of `among` in the k // 16 tiles with the highest bounds of each query.

    bound = sum over d of max(q_d least_d, q_d greatest_d). q float32 (1, H, E); k >= 16; items: see
    `bound_tiles`, of all tiles below among.last; the rest as `nearest`. `position_hash` of a tile's
    first token breaks ties.
    """
    from .scan import highest_tiles_kernel

    s = scratch
    check_choice("tiles", among, k, Lists(index, counts), s.none_taken, s)
    check_query("tiles", q, s, s.head_dim)
    if k < TILE:
        raise OpsError(f"tiles: cannot choose {k} tokens, a tile has {TILE}")
    if among.last > SEGMENT * len(items):
        raise OpsError(f"tiles: token {among.last - 1} lies outside the column")
    s.ready(n_threads())
    query = s.query.fill(Query(q=q, items=items, lists=index, counts=counts))
    heads = s.n_kv_heads, s.dimensions
    highest_tiles_kernel(query, s.arguments.address, *heads, *among, k // TILE, seed)
