"""The checking wrapper of attention of rows to lists of tokens, and its scratch."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernels
from ....jit.threads import n_threads
from ...arrays import F32
from ...errors import OpsError
from ..arguments import Dense, ListedMemory, ListedRows
from ..checks import check_floats
from ..layout import SEGMENT, TILE, TileLayout
from ..sinks import add_sinks
from ..softmax import Softmax
from ..work import ROWS, Scratch, gathered_work_bytes, heads_at_once


class ReadRows(NamedTuple):
    """What rows read: tokens 0 .. sinks-1 and first .. their own (`dense`), and those of a list.

    lists uint32 (T, J, room), ascending for speed, of which the first counts[t, j] (int64) are
    read; none contains a token that all rows read.
    """

    lists: NDArray[np.uint32]
    counts: NDArray[np.int64]
    dense: Dense


@lazy_kernels
def _listed(k_type: int, v_type: int, blocks: int, heads: int) -> DefinedKernel:
    from .listed_kernels import make_listed

    return make_listed(k_type, v_type, blocks, heads)


class ListedScratch(Scratch):
    """Memory for `listed_attention`."""

    def __init__(self, n_heads: int, n_kv_heads: int, layout: TileLayout) -> None:
        super().__init__(n_heads, n_kv_heads, layout)
        self.width = heads_at_once(n_heads, n_kv_heads)
        self.attend = _listed(*layout.codes, self.heads)
        self.given, self.memory = Arguments(ListedRows), Arguments(ListedMemory)

    def _allocate(self, threads: int) -> None:
        rows = self.rounds * self.heads
        memory = ListedMemory(
            works=self._chunk_works(threads),
            newest=np.empty((threads, ROWS), np.int64),
            list_works=self._token_works(threads),
            rooms=aligned((threads, gathered_work_bytes(self.layout.tile_bytes)), np.uint8),
            sums=aligned((threads, rows, self.layout.padded), np.float32),
            maxima=np.empty((threads, rows), np.float32),
            totals=np.empty((threads, rows), np.float32),
        )
        self.memory.fill(memory)


def listed_attention(
    q: F32,
    read: ReadRows,
    segments: NDArray[np.int64],
    out: F32,
    *,
    softmax: Softmax,
    softmaxes: F32 | None = None,
    scratch: ListedScratch,
) -> None:
    """out[t, h] = softmax over the tokens i that row t reads of scale q[t, h] . k_i V.

    Row t, at position start + t, reads tokens 0 .. sinks-1, those of its KV head's list, and first
    .. start + t. q, out float32 (T, H, E). `first` is a multiple of 16. softmaxes float32
    (T, H, 2): receives each row's largest score and the sum of exp(score - largest), for
    `add_row_means`. A row's bits depend neither on the other rows nor on the number of threads.
    Raises OpsError where shapes do not fit; the caller makes sure that listed tokens are stored.
    """
    s, n_tokens, (lists, counts, dense) = scratch, len(q), read
    for name, x in (("q", q), ("out", out)):
        shape = n_tokens, s.n_heads, s.layout.head_dim
        check_floats(f"listed attention: {name}", x, shape)
    sinks, first, start = dense
    stop = start + n_tokens
    if not 0 <= sinks <= first <= start < stop <= len(segments) * SEGMENT or first % TILE:
        raise OpsError(
            f"listed attention: {dense} and {n_tokens} rows in {len(segments)} segments, expected "
            f"sinks before a first token that is a multiple of {TILE}, before the rows"
        )
    expected = n_tokens, s.n_kv_heads
    if lists.shape[:2] != expected or lists.dtype != np.uint32 or counts.shape != expected:
        raise OpsError(
            f"listed attention: lists are {lists.dtype} {lists.shape} with {counts.shape} lengths, "
            f"expected uint32 {(*expected, 'room')}"
        )
    if not 0 <= counts.min() <= counts.max() <= lists.shape[2]:
        raise OpsError(
            f"listed attention: lists of {counts.min()} to {counts.max()} tokens, expected 0 to "
            f"{lists.shape[2]}"
        )
    if softmaxes is None:
        size = 0 if softmax.sinks is None else n_tokens
        softmaxes = np.empty((size, s.n_heads, 2), np.float32)
    else:
        check_floats("listed attention: softmaxes", softmaxes, (n_tokens, s.n_heads, 2))
    s.ready(n_threads())
    given = ListedRows(
        q=q, lists=lists, counts=counts, segments=segments, out=out, softmaxes=softmaxes
    )
    s.attend(s.given.fill(given), s.memory.address, *dense, *softmax.scoring, s.width)
    if softmax.sinks is not None:
        add_sinks(out, softmaxes, softmax.sinks)
