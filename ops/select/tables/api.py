"""The checking wrappers: tables of keys, and the tokens that queries draw from them."""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernel
from ....jit.threads import n_threads
from ...arrays import F32, I64
from ...attention.checks import check_floats
from ...attention.layout import SEGMENT, TileLayout, stored_layout
from ...errors import OpsError
from ..choice import Lists, Range, ThreadScratch, check_lists, check_stored
from .arguments import Keys, Query, Rows, Runs, Scratch, Shape, Work
from .planes import LANES, RUN, Hashing, Tables, log_weight_table

_SERIAL_KEYS = 16  # to hash that cost less than waking the threads
_TOGETHER = 4
_WORDS = SEGMENT // 64  # of a mask of one segment

U32 = NDArray[np.uint32]

_keys, _rows = Arguments(Keys), Arguments(Rows)


@lazy_kernel
def _hash_keys() -> DefinedKernel:
    from .codes import hash_keys_kernel

    return hash_keys_kernel


@lazy_kernel
def _sort() -> DefinedKernel:
    from .codes import sort_kernel

    return sort_kernel


@lazy_kernel
def _hash_rows() -> DefinedKernel:
    from .codes import hash_rows_kernel

    return hash_rows_kernel


@lazy_kernel
def _draw() -> DefinedKernel:
    from .drawing import draw_kernel

    return draw_kernel


def _shape(tables: Tables) -> Shape:
    return Shape(*(getattr(tables, name) for name in Shape._fields))


@cache
def _work(tables: Tables, padded: int, threads: int) -> Work:
    signs = -(-tables.panels * LANES // 8 + 4) // 64 * 64 + 128
    return Work(
        rows=np.zeros((threads, _TOGETHER, padded), np.float32),
        signs=np.zeros((threads, _TOGETHER, signs), np.uint8),
    )


def _check_layout(hashing: Hashing, layout: TileLayout) -> None:
    if hashing.centre.shape[1] != layout.head_dim:
        raise OpsError(
            f"hash tables: made for keys of {hashing.centre.shape[1]} elements, these have "
            f"{layout.head_dim}"
        )


class TableStore(NamedTuple):
    """Stored keys and their tables: addresses of the segments of K and V and of the column.

    n_runs: runs, from the first on, that are full and sorted.
    """

    segments: I64
    items: I64
    n_runs: int


def hash_keys(
    hashing: Hashing, segments: I64, layout: TileLayout, items: I64, first: int, stop: int
) -> None:
    """Write the codes of the stored keys of tokens first .. stop-1 into a column.

    Keys are read as stored: dequantised, rotated back. The runs of these tokens have not been
    sorted.
    """
    _check_layout(hashing, layout)
    check_stored("hash tables: tokens", first, stop, SEGMENT * min(len(segments), len(items)))
    n_kv_heads, tables = len(hashing.centre), hashing.tables
    keys = Keys(
        segments=segments, layout=stored_layout(layout), items=items, centre=hashing.padded,
        planes=hashing.planes, work=_work(tables, layout.padded, n_threads()),
    )  # fmt: skip
    parallel = (stop - first) * n_kv_heads > _SERIAL_KEYS
    _hash_keys(_keys.fill(keys), *_shape(tables), n_kv_heads, first, stop, parallel=parallel)


def sort_runs(tables: Tables, n_kv_heads: int, items: I64, first: int, stop: int) -> None:
    """Sort the codes of the full runs first .. stop-1 into tables, in their place."""
    check_stored("hash tables: runs", first, stop, len(items) * SEGMENT // RUN)
    runs = Runs(
        items=items,
        codes=np.empty((n_threads(), tables.number * RUN), np.uint16),
        ends=np.empty((n_threads(), tables.groups + 1), np.int64),
    )
    _sort(Arguments.fixed(runs).address, *_shape(tables), n_kv_heads, first, stop)


class DrawScratch(ThreadScratch):
    """Memory for `draw` from up to n_ctx tokens; nothing is allocated later."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, tables: Tables, layout: TileLayout
    ) -> None:
        self.n_heads, self.n_kv_heads, self.group = n_heads, n_kv_heads, n_heads // n_kv_heads
        self.n_ctx, self.tables, self.layout = n_ctx, tables, layout
        self.codes = np.zeros((n_heads, tables.number), np.uint16)
        self.entries_read = np.zeros(n_kv_heads, np.int64)
        self.rows, self.query = Arguments(Rows), Arguments(Query)

    def allocate(self, threads: int) -> None:
        words = -(-self.n_ctx // RUN) * RUN // 64
        group, padded = self.group, self.layout.padded
        arrays = Scratch(
            agreed=aligned((threads, RUN), np.uint8),
            groups=np.zeros((threads, self.tables.number, 2), np.int64),
            masks=aligned((threads, 2, _WORDS), np.uint64),
            drawn=np.zeros((threads, group, words), np.uint64),
            marks=np.zeros((threads, words), np.uint64),
            rows=np.zeros((threads, group + 1, padded), np.float32),
            norms=np.zeros((threads, group), np.float32),
        )
        self.arguments = Arguments.fixed(arrays)


def draw(
    q: F32,
    hashing: Hashing,
    stored: TableStore,
    among: Range,
    lists: U32,
    counts: I64,
    log_weights: F32,
    *,
    scratch: DrawScratch,
) -> int:
    """Lists of tokens: of `among`, those that any query head of a KV head draws; their log weights.

    A token is drawn by q[h] where at least 2 of the L tables agree on q[h] and the key less the
    centre; its log weight is -log u then (see `planes`), else -1e30, and 0 outside `among`.
    q float32 (1, H, E); lists uint32 (J, room) ascending, of which counts int64 (J,) are written;
    log_weights float32 (H, room). Returns the bytes of tables that were read. The same for any
    number of threads. Source: MagicPIG, section 4.3.
    """
    s, tables = scratch, hashing.tables
    if tables != s.tables:
        raise OpsError(f"drawing: keys are in {tables}, the scratch is for {s.tables}")
    _check_layout(hashing, s.layout)
    drawn, (segments, items, n_runs) = Lists(lists, counts), stored
    _check_draw(q, among, drawn, log_weights, s)
    check_stored("drawing: tokens", 0, among.last, SEGMENT * min(len(segments), len(items)))
    s.ready(n_threads())
    work, shape = _work(tables, s.layout.padded, n_threads()), _shape(tables)
    rows = Rows(q=q, codes=s.codes, planes=hashing.planes, work=work)
    _hash_rows(s.rows.fill(rows), *shape)
    query = Query(
        q=q, codes=s.codes, segments=segments, layout=stored_layout(s.layout), items=items,
        centre=hashing.padded, weights=log_weight_table(tables), lists=drawn,
        log_weights=log_weights, entries_read=s.entries_read,
    )  # fmt: skip
    _draw(s.query.fill(query), s.arguments.address, *shape, n_runs, *among)
    looked_up = max(0, min(n_runs, -(-among.last // RUN)) - among.first // RUN)
    starts = 4 * tables.number * s.n_heads * looked_up
    return 2 * int(s.entries_read.sum()) + starts


def _check_draw(q: F32, among: Range, lists: Lists, log_weights: F32, s: DrawScratch) -> None:
    """Raise OpsError unless these fit each other. Any number of tokens can be drawn."""
    check_floats("drawing: q", q, (1, s.n_heads, s.layout.head_dim))
    if not 0 <= among.first < among.last <= among.stop <= s.n_ctx:
        raise OpsError(f"drawing: {among} does not fit a context of {s.n_ctx} tokens")
    check_lists("drawing", lists, (s.n_kv_heads,), among.stop)
    check_floats("drawing: log weights", log_weights, (s.n_heads, lists.tokens.shape[1]))
