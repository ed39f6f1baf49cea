"""The checking wrappers of blocks of similar keys: building them, and the best in them."""

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Table, kernel, kernels
from ....jit.threads import n_threads
from ...attention.layout import SEGMENT, TileLayout, append_facts
from ...errors import OpsError
from ..choice import Range, check_choice
from ..sketch.api import Rotation, SketchScratch, check_query, check_rotation
from ..work import HISTOGRAM
from .layout import BLOCKS, block_item_bytes
from .tables import BUILD, CALL, SCRATCH

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
_WORK_ROWS = SEGMENT + 5  # floats a thread: the keys, and what is computed of one block

_block_keys = kernel(f"{__package__}.build", "block_keys_kernel")
_best_in_blocks = kernels(f"{__package__}.scan", "make_blocks")
_build = Table(BUILD)


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
    threads = n_threads()
    n = threads * _WORK_ROWS * rotation.bits
    works = aligned(n, np.float32)[:n].reshape(threads, -1)
    works[:] = 0  # what rows have beyond head_dim
    entries, spare = np.empty((2, threads, SEGMENT), np.uint64)
    arrays = _build(
        segments, append_facts(layout), items, rotation.weights, works,
        np.empty((threads, SEGMENT), np.uint16), entries, spare,
        np.empty((threads, HISTOGRAM), np.int64),
    )  # fmt: skip
    item_bytes = block_item_bytes(rotation.bits)
    _block_keys(arrays, item_bytes, n_kv_heads, rotation.bits, first, last)


class BlockScratch(SketchScratch):
    """SketchScratch with what the search in blocks needs."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int, layout: TileLayout
    ) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, k, layout)
        self.block_call, self.block_arrays = Table(CALL), Table(SCRATCH)

    def ready(self, threads: int) -> None:
        """As SelectScratch's."""
        before = self.threads
        super().ready(threads)
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
            self.block_arrays(
                *self.arrays.held, self.queries, self.reach, self.units, self.centres, self.bounds,
                self.wanted, self.block, self.listed,
            )  # fmt: skip


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
    s.ready(n_threads())
    _best_in_blocks(*s.layout.codes, s.bits, s.together)(
        s.block_call(q, segments, items, rotation.weights, index, counts, s.looked),
        s.block_arrays.address, block_item_bytes(s.bits), s.n_kv_heads, among.first, among.last,
        among.stop, k, few, seed,
    )  # fmt: skip
    return int(s.looked.sum())
