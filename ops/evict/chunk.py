"""Attention of a chunk whose tokens take the slots of others: each query sees what is left for it.

As `ops.attention.prefill`, whose steps these are, over two ranges of keys: the slots as they were
before the chunk, and the staged tokens of the chunk. A query t sees a key until `leaves` > t no
longer holds (see moves.py), and staged tokens 0 .. t.
"""

from llvmlite import ir
from numba import types

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.launch.atomics import take
from ...jit.launch.legacy_define import lent, step
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
from .tables import LEAVING

_NEVER = -1e30
_FAR = 1 << 40  # before every query


@emits(f32x16, f32x16, i32x16, v.INTP, v.INTP, types.float32)
def _seen(b, x, leaves, t, n, fill):
    """x in lanes below n whose key leaves after query t, `fill` in the others."""
    lane = ir.Constant(v.vty(v.I32, 16), list(range(16)))
    t, n = (v.splat(b, b.trunc(i, v.I32), 16) for i in (t, n))
    seen = b.and_(b.icmp_signed(">", leaves, t), b.icmp_signed("<", lane, n))
    return b.select(seen, x, v.splat(b, fill, 16))


@jit
def _softmax_row(s, leaves, n_keys, t, n_seen, softcap, old):
    """exp(cap(s) - max) in place over n_keys, 0 for keys out of sight; gives (new maximum, sum)."""
    m = set_f32(old)
    for i in range(0, n_keys, TILE):
        x = load_f32(s, 4 * i)
        if softcap != 0.0:
            x = vtanh(x * set_f32(1.0 / softcap)) * set_f32(softcap)
        x = _seen(x, load_i32(leaves, 4 * i), t, n_seen - i, _NEVER)
        store(s, 4 * i, x)
        m = vmax(m, x)
    top = hmax(m)
    m, total = set_f32(top), set_f32(0.0)
    for i in range(0, n_keys, TILE):
        p = vexp(load_f32(s, 4 * i) - m)
        p = _seen(p, load_i32(leaves, 4 * i), t, n_seen - i, 0.0)
        store(s, 4 * i, p)
        total = total + p
    return top, hsum(total)


@jit
def _softmax(
    shape, rows, row0, group, leaves, n_keys, staged, first, softcap, scores, sums, m, total
):
    """Online softmax of a block of keys for all rows: probabilities, and sums rescaled."""
    for r in range(rows):
        t = (row0 + r) // group
        n_seen = min(n_keys, t + 1 - first) if staged else n_keys
        s = scores + 4 * r * of.keys(shape)
        top, part = _softmax_row(s, leaves, n_keys, t, n_seen, softcap, m[r])
        if top > m[r]:
            keep = vexp(set_f32(m[r] - top))
            for c in range(of.vectors(shape)):
                o = 4 * (r * of.padded(shape) + 16 * c)
                store(sums, o, load_f32(sums, o) * keep)
            total[r] *= hmax(keep)
        m[r] = top
        total[r] += part


@jit
def _keys_block(
    shape, segments, head, panels, rows, row0, group, newest, n_all, staged, leaves, softcap, qp,
    sums, rest,
):  # fmt: skip
    """All rows against one range of keys, 0 .. n_all-1 of `segments`."""
    n, keys = of.padded(shape), of.keys(shape)
    kt, vs = rest[: keys * n].ctypes.data, rest[keys * n :].ctypes.data
    rest = rest[2 * keys * n :]
    scores, m, total = rest.ctypes.data, rest[ROWS * keys :], rest[ROWS * keys + ROWS :]
    stop = min(n_all, newest[panels - 1] + 1) if staged else n_all
    for first in range(0, stop, keys):
        n_keys, seen_from = min(stop - first, keys), first if staged else -_FAR
        unpack(shape, segments.ctypes.data, head, first, first + n_keys, kt, vs)
        panel_scores(shape, qp, kt, panels, n_keys, newest.ctypes.data, seen_from, scores)
        _softmax(
            shape, rows, row0, group, leaves + 4 * first, n_keys, staged, first, softcap, scores,
            sums, m, total,
        )  # fmt: skip
        panel_values(shape, scores, vs, panels, n_keys, newest.ctypes.data, seen_from, sums)


@jit
def _rows_block(
    shape, q, segments, staged, head, group, row0, rows, n_slots, n_tokens, leaves, first_staged,
    scale, softcap, work, newest, out,
):  # fmt: skip
    """One block of query rows of one KV head against slots and staged tokens."""
    n, keys = of.padded(shape), of.keys(shape)
    qp, sums, rest = work[: ROWS * n], work[ROWS * n : 2 * ROWS * n], work[2 * ROWS * n :]
    length, stride = q.shape[2], 4 * q.shape[1] * q.shape[2]
    place = 4 * head * group * length
    panels = pack_rows(
        shape, q.ctypes.data + place, stride, length, group, row0, rows, scale, qp.ctypes.data,
        sums.ctypes.data,
    )  # fmt: skip
    high = of.panel(shape)
    for panel in range(panels):
        newest[panel] = (row0 + min((panel + 1) * high, rows) - 1) // group
    for i in range(panels * high * n):
        sums[i] = 0.0
    ends = rest[(2 * n + ROWS) * keys :]
    m, total = ends, ends[ROWS:]
    for r in range(rows):
        m[r] = _NEVER
        total[r] = 0.0
    _keys_block(
        shape, segments, head, panels, rows, row0, group, newest, n_slots, False,
        leaves[head].ctypes.data, softcap, qp.ctypes.data, sums.ctypes.data, rest,
    )  # fmt: skip
    _keys_block(
        shape, staged, head, panels, rows, row0, group, newest, n_tokens, True,
        leaves[head, first_staged:].ctypes.data, softcap, qp.ctypes.data, sums.ctypes.data, rest,
    )  # fmt: skip
    finish_rows(
        shape, sums.ctypes.data, total.ctypes.data, stride, length, group, row0, rows,
        out.ctypes.data + place,
    )  # fmt: skip


def make_leaving(k, v, blocks):
    """The kernel for KV types (k, v) and rows of 32 * blocks elements."""

    @step("iiiiff")
    def kernel(part, parts, ticket, arrays, n_kv_heads, n_slots, first_staged, scale, softcap):
        """q, out float32[T, H, E]; leaves int32[J, first_staged + T or more]; works and newest as
        `chunk_kernel`. About 4 T H E (slots + T / 2) multiply-adds.
        """
        q, segments, staged, leaves, out, works, newest = lent(arrays, LEAVING)
        shape = of.shape_of(k, v, blocks, 1)
        n_tokens, group = q.shape[0], q.shape[1] // n_kv_heads
        n_rows = n_tokens * group
        item = take(ticket)
        while item < (n_rows + ROWS - 1) // ROWS * n_kv_heads:
            row0 = item // n_kv_heads * ROWS
            _rows_block(
                shape, q, segments, staged, item % n_kv_heads, group, row0,
                min(ROWS, n_rows - row0), n_slots, n_tokens, leaves, first_staged, scale, softcap,
                works[part], newest[part], out,
            )  # fmt: skip
            item = take(ticket)

    return kernel
