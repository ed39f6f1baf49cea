"""Attention of a chunk of new tokens: blocks of query rows times blocks of keys.

The T * G query rows that share a KV head are cut into blocks of 96. Each block reads the keys that
it may see in blocks of 128 (64 for long rows), which begin at multiples of that. K is transposed
and V is converted to float32 once for each pair of blocks; scores and sums are register tiles; a
running maximum rescales the sums (flash attention). The division of the work depends only on shapes
and positions, never on the number of threads.
"""

from typing import NamedTuple

from ....jit.cached import jit
from ....jit.launch import DefinedKernel
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.simd import mask
from ..arguments import Chunk, Scoring
from ..layout import TILE
from ..shape import shape_of
from ..work import ROWS
from .blocks import (
    KeyBlock,
    RowBlock,
    begin_rows,
    buffers_of,
    finish_rows,
    make_add_keys,
    position_of,
    put_softmaxes,
)


class _Window(NamedTuple):
    """Keys first .. stop-1 of a block."""

    first: int
    stop: int


@jit
def _in_window(rows, keys, r, window):
    """Up to the row's own position, `window` keys in all."""
    stop = position_of(rows, r) + 1 - keys.position
    return _Window(max(stop - window, 0), min(stop, keys.n))


@jit
def _hide_outside(x, seen, i, fill):
    if i < seen.first or i + TILE > seen.stop:
        x = mask(x, seen.first - i, seen.stop - i, fill)
    return x


add_keys = make_add_keys(_in_window, _hide_outside)


@jit
def _attend_rows(shape, chunk, rows, window, scoring, at):
    """One block of query rows of one KV head with all the keys that it may see."""
    stop = begin_rows(shape, chunk.q, rows, scoring.scale, at) + 1
    oldest, width = max(position_of(rows, 0) - window + 1, 0), shape.keys
    for first in range(oldest // width * width, stop, width):
        keys = KeyBlock(chunk.segments, rows.head, first, min(stop - first, width), first)
        add_keys(shape, rows, keys, window, scoring.softcap, at)
    finish_rows(shape, rows, at, chunk.out)
    if chunk.softmaxes.shape[0]:
        put_softmaxes(rows, at, chunk.softmaxes)


def make_chunk(k_type: int, v_type: int, blocks: int) -> DefinedKernel:
    """For KV types and rows of 32 * blocks elements."""

    @kernel
    def chunk_kernel(
        share: Share, chunk: Chunk, n_kv_heads: int, start: int, window: int, scoring: Scoring
    ):
        """Tokens at positions start.., of which each sees `window`.

        About 4 T H E S / 2 multiply-adds for S = T fresh keys.
        """
        shape, part = shape_of(k_type, v_type, blocks, 1), share.part
        n_tokens, n_heads, _ = chunk.q.shape
        group = n_heads // n_kv_heads
        n_rows = n_tokens * group
        items = (n_rows + ROWS - 1) // ROWS * n_kv_heads
        at = buffers_of(shape, chunk.works[part], chunk.newest[part])
        # Later rows see more keys: they go first, so that no thread ends long after the others.
        item = items - 1 - take(share.ticket)
        while item >= 0:
            row0, head = item // n_kv_heads * ROWS, item % n_kv_heads
            rows = RowBlock(head, group, row0, min(ROWS, n_rows - row0), start)
            _attend_rows(shape, chunk, rows, window, scoring, at)
            item = items - 1 - take(share.ticket)

    return chunk_kernel
