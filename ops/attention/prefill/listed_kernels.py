"""Attention of rows of a prompt to sinks, the newest tokens, and a list of tokens for each row.

Tokens that all rows read go block by block, as in `chunk`: K and V are unpacked once for a block of
rows. Then each row's list is gathered, as in decode, and folded into the row's sums.
"""

from ....jit.cached import jit
from ....jit.launch import DefinedKernel
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address
from ....jit.simd import hmax, load_f32, load_one_f32, set_f32, store, vexp
from ..arguments import NO_WINDOW, Dense, ListedMemory, ListedRows, Scoring
from ..decode.block import NO_WEIGHTS, HeadBlock
from ..decode.gathered_kernels import attend_list
from ..decode.token import put_queries
from ..shape import shape_of
from ..work import ROWS, TILE_SCORES, TILE_WORK
from .blocks import KeyBlock, RowBlock, begin_rows, buffers_of, finish_rows, put_softmaxes
from .chunk import add_keys


@jit
def _add_dense(shape, given, rows, j, dense, scoring, at):
    """Sums of a block of rows over the tokens that all of them read, in a fixed order."""
    stop = begin_rows(shape, given.q, rows, scoring.scale, at) + 1
    width = shape.keys
    for i in range(0, dense.sinks, width):
        keys = KeyBlock(given.segments, j, i, min(dense.sinks - i, width), i)
        add_keys(shape, rows, keys, NO_WINDOW, scoring.softcap, at)
    for i in range(dense.first, stop, width):
        keys = KeyBlock(given.segments, j, i, min(stop - i, width), i)
        add_keys(shape, rows, keys, NO_WINDOW, scoring.softcap, at)


@jit
def _fold(shape, r, block, h, at):
    """Add row h of `block` to row r of a chunk: both are sums beside a maximum and a total."""
    m, total = at.maxima + 4 * r, at.totals + 4 * r
    other, line = block.sums + 4 * h * shape.padded, at.sums + 4 * r * shape.padded
    old, new = load_one_f32(m, 0), load_one_f32(block.maxima, 4 * h)
    top = max(old, new)
    a, b = vexp(set_f32(old - top)), vexp(set_f32(new - top))
    for c in range(shape.vectors):
        store(line, 64 * c, load_f32(line, 64 * c) * a + load_f32(other, 64 * c) * b)
    part = load_one_f32(block.totals, 4 * h) * hmax(b)
    store(total, 0, load_one_f32(total, 0) * hmax(a) + part)
    store(m, 0, top)


@jit
def _add_list(shape, given, rows, row, j, scoring, block, room):
    """The outputs of a row's query heads in `rows`, which read KV head j, over its list."""
    n, q, width = given.q.shape[2], given.q, rows.group
    put_queries(shape, address(q[row, rows.head * width]), width, n, scoring.scale, block.queries)
    tokens = given.lists[row, j, : given.counts[row, j]]
    attend_list(shape, block, tokens, given.segments, j, NO_WEIGHTS, room)


def make_listed(k_type: int, v_type: int, blocks: int, heads: int) -> DefinedKernel:
    """For KV types, rows of 32 * blocks elements, `heads` query heads of a list at a time."""

    @kernel
    def listed_kernel(
        share: Share,
        given: ListedRows,
        memory: ListedMemory,
        dense: Dense,
        scoring: Scoring,
        width: int,
    ):
        """Reads the K and V rows of each list once for `width` heads of each row, all others once
        for 96 rows.

        Item i is block i % n of rows of `width` query heads from width * (i // n) on, which share a
        KV head: so do the threads its K and V.
        """
        shape, part = shape_of(k_type, v_type, blocks, heads), share.part
        n_tokens, n_heads, _ = given.q.shape
        n_kv_heads = given.counts.shape[1]
        parts = n_heads // n_kv_heads // width
        rounds, at_once = (width + heads - 1) // heads, ROWS // width
        n_blocks = (n_tokens + at_once - 1) // at_once
        at = buffers_of(shape, memory.works[part], memory.newest[part])
        work, room = address(memory.list_works[part]), address(memory.rooms[part])
        block = HeadBlock(
            work + TILE_WORK + TILE_SCORES * rounds * heads, rounds, scoring.softcap, work,
            address(memory.sums[part]), address(memory.maxima[part]), address(memory.totals[part]),
        )  # fmt: skip
        item = take(share.ticket)
        while item < n_blocks * n_kv_heads * parts:
            head, first = item // n_blocks, item % n_blocks * at_once
            j, stop = head // parts, min(first + at_once, n_tokens)
            rows = RowBlock(head, width, first * width, (stop - first) * width, dense.start)
            _add_dense(shape, given, rows, j, dense, scoring, at)
            for row in range(first, stop):
                if given.counts[row, j] > 0:
                    _add_list(shape, given, rows, row, j, scoring, block, room)
                    for h in range(width):
                        _fold(shape, (row - first) * width + h, block, h, at)
            finish_rows(shape, rows, at, given.out)
            if given.softmaxes.shape[0]:
                put_softmaxes(rows, at, given.softmaxes)
            item = take(share.ticket)

    return listed_kernel
