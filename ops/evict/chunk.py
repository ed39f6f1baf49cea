"""Attention of a chunk whose tokens evict others: each query sees what is left for it.

Made of the blocks of `ops.attention.prefill`, over two ranges of keys: the slots as they were
before the chunk, and the staged tokens of the chunk. Query t sees a key until the staged token that
evicts it (`evicted_by`, see `slots`), and of the staged tokens it sees 0 .. t.
"""

from typing import NamedTuple

from llvmlite import ir
from numba import types

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.launch.arguments import I64_1D
from ...jit.launch.atomics import take
from ...jit.launch.define import Share, kernel
from ...jit.launch.views import address
from ...jit.simd import emits, f32x16, i32x16, load_i32
from ..attention.arguments import Scoring
from ..attention.prefill.blocks import (
    KeyBlock,
    RowBlock,
    begin_rows,
    buffers_of,
    finish_rows,
    make_add_keys,
    position_of,
    put_softmaxes,
)
from ..attention.shape import shape_of
from ..attention.work import ROWS
from .arguments import Attention

_BEFORE_ALL = -(1 << 40)  # a position before that of every query


class _Keys(NamedTuple):
    """Slots or staged tokens, and the address of their int32 `evicted_by` in one KV head.

    Positions count from the first staged token.
    """

    segments: I64_1D
    evicted_by: int
    position: int
    """Of key 0; `_BEFORE_ALL` for slots."""


class _Seen(NamedTuple):
    """The first n keys of a block, without those that are evicted before or by query t."""

    evicted_by: int
    t: int
    n: int


@jit
def _seen_by(rows, keys, r, evicted_by):
    t = position_of(rows, r)
    return _Seen(evicted_by + 4 * keys.first, t, min(keys.n, t + 1 - keys.position))


@emits(f32x16, f32x16, i32x16, v.INTP, v.INTP, types.float32)
def _select(b, x, evicted_by, t, n, fill):
    """x in lanes below n whose key is evicted after query t, `fill` in the others."""
    lane = ir.Constant(v.vty(v.I32, 16), list(range(16)))
    t, n = (v.splat(b, b.trunc(i, v.I32), 16) for i in (t, n))
    seen = b.and_(b.icmp_signed(">", evicted_by, t), b.icmp_signed("<", lane, n))
    return b.select(seen, x, v.splat(b, fill, 16))


@jit
def _hide_evicted(x, seen, i, fill):
    return _select(x, load_i32(seen.evicted_by, 4 * i), seen.t, seen.n - i, fill)


_add_block = make_add_keys(_seen_by, _hide_evicted)


@jit
def _add_keys(shape, rows, keys, stop, softcap, at):
    """Keys 0 .. stop-1, block by block."""
    width = shape.keys
    for first in range(0, stop, width):
        n, position = min(stop - first, width), keys.position + first
        block = KeyBlock(keys.segments, rows.head, first, n, position)
        _add_block(shape, rows, block, keys.evicted_by, softcap, at)


def make_staged(k_type, v_type, blocks):
    """For KV types and rows of 32 * blocks elements."""

    @kernel
    def staged_kernel(
        share: Share,
        arrays: Attention,
        n_kv_heads: int,
        n_slots: int,
        first_staged: int,
        scoring: Scoring,
    ):
        """evicted_by int32[J, first_staged + T or more]. About 4 T H E (slots + T / 2)
        multiply-adds."""
        shape, part = shape_of(k_type, v_type, blocks, 1), share.part
        n_tokens, n_heads, _ = arrays.q.shape
        group = n_heads // n_kv_heads
        n_rows = n_tokens * group
        at = buffers_of(shape, arrays.works[part], arrays.newest[part])
        item = take(share.ticket)
        while item < (n_rows + ROWS - 1) // ROWS * n_kv_heads:
            row0, head = item // n_kv_heads * ROWS, item % n_kv_heads
            rows = RowBlock(head, group, row0, min(ROWS, n_rows - row0), 0)
            evicted_by = address(arrays.evicted_by[head])
            slots = _Keys(arrays.segments, evicted_by, _BEFORE_ALL)
            staged = _Keys(arrays.staged, evicted_by + 4 * first_staged, 0)
            last = begin_rows(shape, arrays.q, rows, scoring.scale, at)
            _add_keys(shape, rows, slots, n_slots, scoring.softcap, at)
            _add_keys(shape, rows, staged, last + 1, scoring.softcap, at)
            finish_rows(shape, rows, at, arrays.out)
            if arrays.softmaxes.shape[0]:
                put_softmaxes(rows, at, arrays.softmaxes)
            item = take(share.ticket)

    return staged_kernel
