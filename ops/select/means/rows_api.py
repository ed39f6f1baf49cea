"""The checking wrapper of means of blocks for many rows of queries, and its scratch."""

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernels
from ....jit.threads import n_threads
from ...attention.arguments import Dense, Scoring
from ...attention.checks import check_floats
from ...attention.layout import SEGMENT
from ...attention.work import MOST_KEYS, ROWS, chunk_work_floats
from ...errors import OpsError
from ..choice import F32, I64
from .arguments import RowMemory, RowTail
from .layout import means_item_bytes, means_layout


@lazy_kernels
def _row_means(blocks: int) -> DefinedKernel:
    from .rows import make_row_means

    return make_row_means(blocks)


class RowMeansScratch:
    """Memory for `add_row_means`, for each thread. At most 96 query heads share a KV head."""

    def __init__(self, n_heads: int, n_kv_heads: int, head_dim: int) -> None:
        if n_heads % n_kv_heads or n_heads // n_kv_heads > ROWS:
            raise OpsError(
                f"means of rows: {n_heads} query heads share {n_kv_heads} KV heads, expected at "
                f"most {ROWS} for each"
            )
        self.n_heads, self.n_kv_heads, self.layout = n_heads, n_kv_heads, means_layout(head_dim)
        self.head_bytes = SEGMENT * means_item_bytes(head_dim)
        self.add = _row_means(self.layout.blocks)
        self.given, self.memory, self.threads = Arguments(RowTail), Arguments(RowMemory), 0

    def ready(self, threads: int) -> None:
        """Have scratch for each of `threads` threads."""
        if threads <= self.threads:
            return
        n = -(-chunk_work_floats(self.layout.padded) // 16) * 16
        memory = RowMemory(
            works=aligned((threads, n), np.float32),
            newest=np.empty((threads, ROWS), np.int64),
            left=aligned((threads, ROWS + 1, MOST_KEYS), np.uint8),
            places=np.empty((threads, ROWS), np.int64),
            live=np.empty((threads, ROWS), np.int64),
        )
        self.memory.fill(memory)
        self.threads = threads


def add_row_means(
    q: F32,
    lists: NDArray[np.uint32],
    counts: I64,
    dense: Dense,
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
    list of the row and KV head. Blocks whose weight is below 2^-20 of the sum over what was read
    count nothing. q, out float32 (T, H, E), lists (ascending), counts, dense, softmaxes float32
    (T, H, 2): as of `listed_attention`; items int64: addresses of segments of the column of
    `block_means`. A row's bits depend neither on the other rows nor on the number of threads.
    Raises OpsError where shapes do not fit.
    """
    s, n_tokens = scratch, len(q)
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
    given = RowTail(q=q, lists=lists, counts=counts, items=items, softmaxes=softmaxes, out=out)
    s.add(s.given.fill(given), s.memory.address, *dense, *scoring, s.head_bytes)
