"""Sums over queries of the rows of their causal softmax: how much attention each key gets.

F[j][key] = sum over queries t and their heads h of KV head j, of exp(score(t, h, key) - L[t][h])

where L is the log-sum-exp of the query's scores, so that each row sums to 1. One item of work is a
segment of keys of one KV head, which goes over all queries: nothing is added twice, and the sums
are the same for any number of threads.
"""

from ...jit.cached import jit
from ...jit.launch import DefinedKernel
from ...jit.launch.atomics import take
from ...jit.launch.define import Share, kernel
from ...jit.launch.views import address
from ...jit.simd import load_f32, load_one_f32, mask, set_f32, store, vexp, vtanh
from ..attention.arguments import Scoring
from ..attention.layout import SEGMENT, TILE
from ..attention.prefill.blocks import (
    KeyBlock,
    RowBlock,
    begin_rows,
    buffers_of,
    n_panels,
    panel_scores,
    position_of,
    unpack_keys_of,
)
from ..attention.shape import shape_of
from ..attention.work import ROWS
from .arguments import ColumnSums


@jit
def _set_log_sums(rows, log_sums, at):
    """The rows' log-sum-exp where attention has their maxima."""
    for r in range(rows.n):
        row = rows.first + r
        head = rows.head * rows.group + row % rows.group
        store(at.maxima, 4 * r, log_sums[row // rows.group, head])


@jit
def _add_block(shape, rows, keys, softcap, at, sums):
    """Add the rows' probabilities of a block of keys to the float32 at address `sums`."""
    for i in range(0, keys.n, TILE):
        total = load_f32(sums, 4 * i)
        for r in range(rows.n):
            n_seen = position_of(rows, r) + 1 - keys.position - i
            if n_seen <= 0:
                continue
            x = load_f32(at.scores + 4 * r * shape.keys, 4 * i)
            if softcap != 0.0:
                x = vtanh(x * set_f32(1.0 / softcap)) * set_f32(softcap)
            p = vexp(x - set_f32(load_one_f32(at.maxima, 4 * r)))
            if n_seen < TILE:
                p = mask(p, 0, n_seen, 0.0)
            total = total + p
        store(sums, 4 * i, total)


@jit
def _add_segment(shape, arrays, rows, first, scoring, at):
    """One block of query rows with the keys of a segment, from key `first` on."""
    stop = begin_rows(shape, arrays.q, rows, scoring.scale, at) + 1
    _set_log_sums(rows, arrays.log_sums, at)
    panels, width, sums = n_panels(shape, rows), shape.keys, address(arrays.sums[rows.head])
    stop = min(stop, first + SEGMENT)
    for key in range(first, stop, width):
        keys = KeyBlock(arrays.segments, rows.head, key, min(stop - key, width), key)
        unpack_keys_of(shape, keys, at)
        panel_scores(shape, panels, keys, at)
        _add_block(shape, rows, keys, scoring.softcap, at, sums + 4 * key)


def make_columns(k_type: int, v_type: int, blocks: int) -> DefinedKernel:
    """For KV types and rows of 32 * blocks elements."""

    @kernel
    def columns_kernel(
        share: Share, arrays: ColumnSums, n_kv_heads: int, start: int, scoring: Scoring
    ):
        """Queries in slots start.., each over the slots up to its own: T H E S multiply-adds and
        T H S exponentials for S slots."""
        shape, part = shape_of(k_type, v_type, blocks, 1), share.part
        n_tokens, n_heads, _ = arrays.q.shape
        group = n_heads // n_kv_heads
        n_rows = n_tokens * group
        at = buffers_of(shape, arrays.works[part], arrays.newest[part])
        items = (start + n_tokens + SEGMENT - 1) // SEGMENT * n_kv_heads
        item = take(share.ticket)
        while item < items:
            first, head = item // n_kv_heads * SEGMENT, item % n_kv_heads
            for row in range(0, n_rows, ROWS):
                rows = RowBlock(head, group, row, min(ROWS, n_rows - row), start)
                if position_of(rows, rows.n - 1) >= first:
                    _add_segment(shape, arrays, rows, first, scoring, at)
            item = take(share.ticket)

    return columns_kernel
