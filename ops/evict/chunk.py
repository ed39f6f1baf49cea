"""Attention of a chunk whose tokens evict others: each query sees what is left for it.

As `ops.attention.prefill`, whose steps these are, over two ranges of keys: the slots as they were
before the chunk, and the staged tokens of the chunk. A query t sees a key until the staged token
that evicts it (`evicted_by`, see write.py), and of the staged tokens 0 .. t.
"""

from typing import NamedTuple

from llvmlite import ir
from numba import types

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.launch.arguments import F32_1D, I64_1D
from ...jit.launch.atomics import take
from ...jit.launch.define import Share, kernel
from ...jit.launch.views import address
from ...jit.simd import (
    emits,
    f32x16,
    hmax,
    hsum,
    i32x16,
    load_f32,
    load_i32,
    set_f32,
    store,
    vexp,
    vmax,
)
from ..attention import shape as of
from ..attention.layout import TILE
from ..attention.prefill.chunk import (
    finish_rows,
    pack_rows,
    panel_scores,
    panel_values,
    unpack,
)
from ..attention.work import ROWS
from ..pointwise.tanh import vtanh
from .arguments import Attention

_HIDDEN = -1e30  # the score of a key that a query does not see
_BEFORE_ALL = -(1 << 40)  # a position before that of every query


class Rows(NamedTuple):
    """A block of query rows, numbered [token][query head of the group]."""

    first: int
    n: int
    group: int
    panels: int


class Keys(NamedTuple):
    """Keys 0 .. n-1 of one KV head; segments, evicted_by: addresses."""

    segments: int
    head: int
    n: int
    evicted_by: int
    staged: bool


class Work(NamedTuple):
    """A thread's memory for a block of rows and one of keys, laid out as prefill's steps do."""

    q: F32_1D
    sums: F32_1D
    keys: F32_1D
    values: F32_1D
    scores: F32_1D
    maxima: F32_1D
    totals: F32_1D
    newest: I64_1D


@emits(f32x16, f32x16, i32x16, v.INTP, v.INTP, types.float32)
def _seen(b, x, evicted_by, t, n, fill):
    """x in lanes below n whose key is evicted after query t, `fill` in the others."""
    lane = ir.Constant(v.vty(v.I32, 16), list(range(16)))
    t, n = (v.splat(b, b.trunc(i, v.I32), 16) for i in (t, n))
    seen = b.and_(b.icmp_signed(">", evicted_by, t), b.icmp_signed("<", lane, n))
    return b.select(seen, x, v.splat(b, fill, 16))


@jit
def _softmax_row(s, evicted_by, n_keys, t, n_seen, softcap, old):
    """exp(cap(s) - max) in place over n_keys, 0 for keys out of sight; gives (new maximum, sum)."""
    m = set_f32(old)
    for i in range(0, n_keys, TILE):
        x = load_f32(s, 4 * i)
        if softcap != 0.0:
            x = vtanh(x * set_f32(1.0 / softcap)) * set_f32(softcap)
        x = _seen(x, load_i32(evicted_by, 4 * i), t, n_seen - i, _HIDDEN)
        store(s, 4 * i, x)
        m = vmax(m, x)
    top = hmax(m)
    m, total = set_f32(top), set_f32(0.0)
    for i in range(0, n_keys, TILE):
        p = vexp(load_f32(s, 4 * i) - m)
        p = _seen(p, load_i32(evicted_by, 4 * i), t, n_seen - i, 0.0)
        store(s, 4 * i, p)
        total = total + p
    return top, hsum(total)


@jit
def _softmax(shape, rows, keys, first, n_keys, softcap, work):
    """Online softmax of keys first .. first+n_keys-1 for all rows: probabilities, and sums
    rescaled."""
    maxima, totals, sums = work.maxima, work.totals, address(work.sums)
    evicted_by = keys.evicted_by + 4 * first
    for r in range(rows.n):
        t = (rows.first + r) // rows.group
        n_seen = min(n_keys, t + 1 - first) if keys.staged else n_keys
        s = address(work.scores) + 4 * r * of.keys(shape)
        top, part = _softmax_row(s, evicted_by, n_keys, t, n_seen, softcap, maxima[r])
        if top > maxima[r]:
            keep = vexp(set_f32(maxima[r] - top))
            for c in range(of.vectors(shape)):
                o = 4 * (r * of.padded(shape) + 16 * c)
                store(sums, o, load_f32(sums, o) * keep)
            totals[r] *= hmax(keep)
        maxima[r] = top
        totals[r] += part


@jit
def _add_keys(shape, rows, keys, softcap, work):
    """All rows against one range of keys."""
    q, kt, vs = address(work.q), address(work.keys), address(work.values)
    scores, sums, newest = address(work.scores), address(work.sums), address(work.newest)
    panels, width = rows.panels, of.keys(shape)
    stop = min(keys.n, work.newest[panels - 1] + 1) if keys.staged else keys.n
    for first in range(0, stop, width):
        n_keys, position = min(stop - first, width), first if keys.staged else _BEFORE_ALL
        unpack(shape, keys.segments, keys.head, first, first + n_keys, kt, vs)
        panel_scores(shape, q, kt, panels, n_keys, newest, position, scores)
        _softmax(shape, rows, keys, first, n_keys, softcap, work)
        panel_values(shape, scores, vs, panels, n_keys, newest, position, sums)


@jit
def _work_of(shape, x, newest):
    """The `Work` in a thread's floats x, see `chunk_work_floats`."""
    n, keys = of.padded(shape), of.keys(shape)
    sums = ROWS * n
    kt = sums + ROWS * n
    vs = kt + keys * n
    scores = vs + keys * n
    maxima = scores + ROWS * keys
    totals = maxima + ROWS
    return Work(
        x[:sums],
        x[sums:kt],
        x[kt:vs],
        x[vs:scores],
        x[scores:maxima],
        x[maxima:totals],
        x[totals:],
        newest,
    )


@jit
def _begin(shape, rows, work):
    """No key has been seen: `work` of a block of rows."""
    high = of.panel(shape)
    for panel in range(rows.panels):
        stop = rows.first + min((panel + 1) * high, rows.n)
        work.newest[panel] = (stop - 1) // rows.group
    for i in range(rows.panels * high * of.padded(shape)):
        work.sums[i] = 0.0
    for r in range(rows.n):
        work.maxima[r] = _HIDDEN
        work.totals[r] = 0.0


@jit
def _attend_rows(shape, arrays, rows, slots, staged, scale, softcap, work):
    """One block of query rows of one KV head against slots and staged tokens, both `Keys`."""
    n_heads, length = arrays.q.shape[1:]
    stride, place = 4 * n_heads * length, 4 * slots.head * rows.group * length
    first, n, group = rows.first, rows.n, rows.group
    q, sums = address(work.q), address(work.sums)
    pack_rows(shape, address(arrays.q) + place, stride, length, group, first, n, scale, q, sums)
    _begin(shape, rows, work)
    _add_keys(shape, rows, slots, softcap, work)
    _add_keys(shape, rows, staged, softcap, work)
    out, totals = address(arrays.out) + place, address(work.totals)
    finish_rows(shape, sums, totals, stride, length, group, first, n, out)


def make_staged(k, v, blocks):
    """The kernel for KV types (k, v) and rows of 32 * blocks elements."""

    @kernel
    def staged_kernel(
        share: Share,
        arrays: Attention,
        n_kv_heads: int,
        n_slots: int,
        first_staged: int,
        scale: float,
        softcap: float,
    ):
        """evicted_by int32[J, first_staged + T or more]. About 4 T H E (slots + T / 2)
        multiply-adds."""
        shape = of.shape_of(k, v, blocks, 1)
        n_tokens, group, high = arrays.q.shape[0], arrays.q.shape[1] // n_kv_heads, of.panel(shape)
        work = _work_of(shape, arrays.works[share.part], arrays.newest[share.part])
        n_rows = n_tokens * group
        item = take(share.ticket)
        while item < (n_rows + ROWS - 1) // ROWS * n_kv_heads:
            row0, head = item // n_kv_heads * ROWS, item % n_kv_heads
            n = min(ROWS, n_rows - row0)
            rows = Rows(row0, n, group, (n + high - 1) // high)
            evicted_by = address(arrays.evicted_by[head])
            slots = Keys(address(arrays.segments), head, n_slots, evicted_by, False)
            evicted_by += 4 * first_staged
            staged = Keys(address(arrays.staged), head, n_tokens, evicted_by, True)
            _attend_rows(shape, arrays, rows, slots, staged, scale, softcap, work)
            item = take(share.ticket)

    return staged_kernel
