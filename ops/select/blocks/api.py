"""The checking wrappers of blocks of similar keys: building them, and the best in them."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arena import aligned
from ...attention.layout import SEGMENT, TileLayout, append_facts
from ...errors import OpsError
from ...threads import n_threads
from ..best import HISTOGRAM
from ..choice import Range, check_choice
from ..sketch.api import Rotation, SketchScratch, check_query, check_rotation
from .build import WORK_ROWS, block_keys_kernel
from .layout import BLOCKS, block_item_bytes
from .scan import make_blocks

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


def block_keys(
    rotation: Rotation,
    segments: I64,
    layout: TileLayout,
    n_kv_heads: int,
    items: I64,
    first: int,
    last: int,
) -> None:
    """Write the blocks of segments first .. last-1, which are full, into their column.

    items: base addresses of the segments of a column of `block_item_bytes`; see `layout`.
    """
    room = min(len(segments), len(items))
    if not 0 <= first <= last <= room:
        raise OpsError(f"blocks: segments {first} to {last - 1} lie outside the {room} stored")
    check_rotation("blocks", rotation, layout)
    threads = max(1, min(n_threads(), (last - first) * n_kv_heads))
    n = threads * WORK_ROWS * rotation.bits
    works = aligned(n, np.float32)[:n].reshape(threads, -1)
    works[:] = 0  # what rows have beyond head_dim
    entries, spare = np.empty((2, threads, SEGMENT), np.uint64)
    block_keys_kernel(
        segments, append_facts(layout), items, block_item_bytes(rotation.bits), n_kv_heads,
        rotation.weights, rotation.bits, works, np.empty((threads, SEGMENT), np.uint16), entries,
        spare, np.empty((threads, HISTOGRAM), np.int64), first, last,
    )  # fmt: skip


class BlockScratch(SketchScratch):
    """SketchScratch with what the search in blocks needs."""

    def ready(self, threads: int) -> int:
        """As SelectScratch's."""
        before = self.threads
        threads = super().ready(threads)
        if threads > before:
            n = self.together
            size = threads * n * self.bits
            self.queries = aligned(size, np.float32)[:size].reshape(threads, n, self.bits)
            self.queries[:] = 0
            self.reach, self.units = np.empty((2, threads, n), np.float32)
            size = 2 * threads * 2 * n * BLOCKS
            near = aligned(size, np.float32)[:size].reshape(2, threads, 2, n, BLOCKS)
            self.centres, self.bounds = near
            self.wanted = np.empty((threads, 2, n), np.uint64)
            # Of each thread 32 sums in a cache line, then 32 estimates.
            self.block = aligned(threads * 64, np.float32)[: threads * 64].reshape(threads, 64)
            self.listed = np.empty((threads, self.n_ctx), np.uint32)
            self.looked = np.zeros(self.n_kv_heads, np.int64)
        return threads


@cache
def _blocks(k: int, v: int, blocks: int, bits: int, together: int) -> Any:
    return make_blocks(k, v, blocks, bits, together)


def best_in_blocks(
    q: F32,
    segments: I64,
    items: I64,
    rotation: Rotation,
    among: Range,
    k: int,
    few: int,
    index: NDArray[np.uint32],
    counts: I64,
    *,
    seed: int,
    scratch: BlockScratch,
) -> int:
    """Lists of tokens as `best_sketched`, by estimates that the bound of their block caps.

    items: addresses of the column's segments, those below among.stop // 1024 built; tokens of the
    open segment are candidates all. `few` is for each query head, k <= few; index has room for k.
    Gives how many blocks were looked at, over all query heads.
    """
    s = scratch
    few = min(few, max(k, among.last - among.first))
    check_choice("blocks", among, k, index, counts, s)
    check_query("blocks", q, s)
    if not k <= few <= s.k:
        raise OpsError(f"blocks: cannot choose {k} of {few} candidates, there is room for {s.k}")
    if among.stop > SEGMENT * len(segments) or among.stop // SEGMENT > len(items):
        raise OpsError(f"blocks: token {among.stop - 1} lies outside the columns")
    threads = s.ready(n_threads())
    _blocks(*s.layout.codes, s.bits, s.together)(
        q, segments, items, block_item_bytes(s.bits), rotation.weights, s.n_kv_heads, among.first,
        among.last, among.stop, k, few, np.uint32(seed), index, counts, s.looked, s.rows, s.turned,
        s.tiles, s.works, s.queries, s.reach, s.sums, s.units, s.centres, s.bounds, s.wanted,
        s.block, s.best, s.entries, s.seen, s.spare, s.marks, s.chosen, s.listed, s.histograms,
        threads,
    )  # fmt: skip
    return int(s.looked.sum())
