"""The checking wrappers of means of blocks: building them, and adding them to attention."""

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernel, lazy_kernels
from ....jit.threads import n_threads
from ...arrays import F32, I64
from ...attention.arguments import Scoring
from ...attention.checks import check_floats
from ...attention.layout import SEGMENT, TileLayout, n_segments, stored_layout
from ...attention.prefill.listed import ReadRows
from ...attention.work import (
    MOST_KEYS,
    ROWS,
    block_outputs,
    chunk_work_floats,
    heads_at_once,
    rounds_of,
    token_work_bytes,
)
from ...errors import OpsError
from ..choice import ThreadScratch, check_stored
from ..work import HISTOGRAM
from .arguments import Memory, RowMemory, RowTail, Stored, Tail
from .layout import BLOCK, BLOCKS, TILES, means_item_bytes, means_layout

_WORK_ROWS = SEGMENT + 4  # floats a thread: the keys, and what is computed of one block
_HIDDEN = -1e30  # the weight of a block of which nothing is left: its exponential is 0

_stored = Arguments(Stored)


@lazy_kernel
def _block_means() -> DefinedKernel:
    from .build import block_means_kernel

    return block_means_kernel


@lazy_kernels
def _means(blocks: int, heads: int) -> DefinedKernel:
    from .attend import make_means

    return make_means(blocks, heads)


@lazy_kernels
def _row_means(blocks: int) -> DefinedKernel:
    from .rows import make_row_means

    return make_row_means(blocks)


@lazy_kernels
def _merge(blocks: int, heads: int) -> DefinedKernel:
    from .attend import make_merge

    return make_merge(blocks, heads)


def block_means(
    segments: I64,
    layout: TileLayout,
    n_kv_heads: int,
    items: I64,
    first: int,
    stop: int,
) -> None:
    """Write the means of segments first .. stop-1, which are full, into their column.

    items: base addresses of the segments of a column of `means_item_bytes`; see `layout`.
    """
    check_stored("means: segments", first, stop, min(len(segments), len(items)))
    threads, head_bytes = n_threads(), SEGMENT * means_item_bytes(layout.head_dim)
    entries, spare = np.empty((2, threads, SEGMENT), np.uint64)
    stored = Stored(
        segments=segments,
        layout=stored_layout(layout),
        items=items,
        means=stored_layout(means_layout(layout.head_dim)),
        works=aligned((threads, _WORK_ROWS * layout.padded), np.float32),
        order=np.empty((threads, SEGMENT), np.uint16),
        entries=entries,
        spare=spare,
        histogram=np.empty((threads, HISTOGRAM), np.int64),
    )
    _block_means(_stored.fill(stored), n_kv_heads, head_bytes, first, stop)


class MeansScratch(ThreadScratch):
    """Memory for `add_means` in contexts of up to n_ctx tokens; nothing is allocated later."""

    def __init__(self, n_heads: int, n_kv_heads: int, head_dim: int, n_ctx: int) -> None:
        self.rounds, self.heads = rounds_of(n_heads, n_kv_heads)
        self.layout, self.n_heads, self.n_kv_heads = means_layout(head_dim), n_heads, n_kv_heads
        self.means_bytes = TILES * self.layout.tile_bytes  # of a segment of a KV head
        self.head_bytes, self.n_full = SEGMENT * means_item_bytes(head_dim), n_ctx // SEGMENT
        n_items = n_segments(BLOCKS * self.n_full)
        self.blocks = block_outputs(n_items, n_heads, n_kv_heads, self.layout.padded)
        self.logs = np.full(256, _HIDDEN, np.float32)
        self.logs[1 : BLOCK + 1] = np.log(np.arange(1, BLOCK + 1))
        codes = self.layout.blocks, self.heads
        self.attend, self.merge = _means(*codes), _merge(*codes)
        self.tail = Arguments(Tail)

    def allocate(self, threads: int) -> None:
        n_bytes = token_work_bytes(self.layout.padded, self.heads * self.rounds)
        memory = Memory(
            works=aligned((threads, n_bytes), np.uint8),
            left=np.empty((threads, SEGMENT), np.uint8),
            weights=aligned((threads, SEGMENT), np.float32),
            logs=self.logs,
            blocks=self.blocks,
        )
        self.memory = Arguments.fixed(memory)


def add_means(
    q: F32,
    lists: NDArray[np.uint32],
    counts: I64,
    items: I64,
    out: F32,
    *,
    scoring: Scoring,
    masses: F32,
    scratch: MeansScratch,
) -> None:
    """Add to `out`, attention over listed tokens, what the other tokens of full segments count.

    Block b counts as one token with the score cap(scale q . mean key_b) + log(left_b) and the mean
    value; left_b: how many of its 32 tokens the list of the KV head lacks. q, out float32
    (1, H, E); lists, counts: as `gathered_attention` read them, ascending; items int64: base
    addresses of the full segments of the column of `block_means`; masses float32 (H, 2): those of
    `GatheredScratch`. Where all tokens are listed, `out` keeps its bits. Bit-equal for any number
    of threads. Raises OpsError where shapes do not fit.
    """
    s = scratch
    shape = 1, s.n_heads, s.layout.head_dim
    for name, x in (("q", q), ("out", out)):
        check_floats(f"means: {name}", x, shape)
    check_floats("means: masses", masses, (s.n_heads, 2))
    if len(lists) != s.n_kv_heads or lists.dtype != np.uint32 or counts.shape != (s.n_kv_heads,):
        raise OpsError(
            f"means: lists are {lists.dtype} {lists.shape} with {counts.shape} lengths, expected "
            f"uint32 ({s.n_kv_heads}, room)"
        )
    if len(items) > s.n_full:
        raise OpsError(f"means: {len(items)} segments, there is room for {s.n_full}")
    if not len(items):
        return
    s.ready(n_threads())
    tail = Tail(q=q, lists=lists, counts=counts, items=items, masses=masses, out=out)
    tail_at, memory = s.tail.fill(tail), s.memory.address
    s.attend(tail_at, memory, *scoring, s.head_bytes)
    s.merge(tail_at, memory, parallel=False)


class RowMeansScratch(ThreadScratch):
    """Memory for `add_row_means`, for each thread."""

    def __init__(self, n_heads: int, n_kv_heads: int, head_dim: int) -> None:
        rounds_of(n_heads, n_kv_heads)
        self.width = heads_at_once(n_heads, n_kv_heads)
        self.n_heads, self.n_kv_heads, self.layout = n_heads, n_kv_heads, means_layout(head_dim)
        self.head_bytes = SEGMENT * means_item_bytes(head_dim)
        self.add = _row_means(self.layout.blocks)
        self.tail = Arguments(RowTail)

    def allocate(self, threads: int) -> None:
        n = -(-chunk_work_floats(self.layout.padded) // 16) * 16
        memory = RowMemory(
            works=aligned((threads, n), np.float32),
            newest=np.empty((threads, ROWS), np.int64),
            left=aligned((threads, ROWS + 1, MOST_KEYS), np.uint8),
            places=np.empty((threads, ROWS), np.int64),
            live=np.empty((threads, ROWS), np.int64),
        )
        self.memory = Arguments.fixed(memory)


def add_row_means(
    q: F32,
    read: ReadRows,
    items: I64,
    softmaxes: F32,
    out: F32,
    *,
    scoring: Scoring,
    scratch: RowMeansScratch,
) -> None:
    """Add to `out`, attention of rows over what they read, what else of full segments counts.

    Block b of the n = len(items) full segments counts as one token with the score
    cap(scale q . mean key_b) + log(left_b) and the mean value; left_b: how many of its 32 tokens
    the row did not read, which are neither before dense.sinks nor from dense.first on, nor in the
    list of the row and KV head, which is ascending. Blocks whose weight is below 2^-20 of the sum
    over what was read count nothing. q, out float32 (T, H, E), read, softmaxes float32 (T, H, 2):
    as of `listed_attention`; items int64: addresses of segments of the column of
    `block_means`. A row's bits depend neither on the other rows nor on the number of threads.
    Raises OpsError where shapes do not fit.
    """
    s, n_tokens, (lists, counts, dense) = scratch, len(q), read
    for name, x in (("q", q), ("out", out)):
        check_floats(f"means of rows: {name}", x, (n_tokens, s.n_heads, s.layout.head_dim))
    check_floats("means of rows: softmaxes", softmaxes, (n_tokens, s.n_heads, 2))
    each = n_tokens, s.n_kv_heads
    if lists.shape[:2] != each or lists.dtype != np.uint32 or counts.shape != each:
        raise OpsError(
            f"means of rows: lists are {lists.dtype} {lists.shape} with {counts.shape} lengths, "
            f"expected uint32 {(*each, 'room')}"
        )
    if not 0 <= dense.sinks <= dense.first <= dense.start or len(items) > dense.start // SEGMENT:
        raise OpsError(
            f"means of rows: {len(items)} segments and {dense}, expected full segments before the "
            "rows, and sinks before the first token"
        )
    if not len(items) or not n_tokens:
        return
    s.ready(n_threads())
    tail = RowTail(q=q, lists=lists, counts=counts, items=items, softmaxes=softmaxes, out=out)
    s.add(s.tail.fill(tail), s.memory.address, *dense, *scoring, s.head_bytes, s.width)
