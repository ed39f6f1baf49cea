"""Attention of one new token: one pass over the cache, split over KV heads and token blocks."""

import numpy as np
from numba import prange

from ..cache import jit
from ..pointwise.tanh import vtanh
from ..simd import hmax, hsum, load_f32, prefetch_l1, set_f32, store, vexp, vmax
from . import shape as of
from .layout import SEGMENT, TILE
from .rotation import rotate_row
from .steps import (
    HEAD_PARTS,
    HEAD_SCORES,
    add_sums,
    fold,
    key_step,
    mask,
    no_sums,
    strip_bytes,
    value_step,
)

_NEVER = -1e30  # score of a key out of sight: its exponential is 0
_AHEAD = 2  # tiles: about the time that memory takes to answer


@jit
def key_scores(shape, q, base, lo, hi, parts, s):
    """s[h][t] = q[h] . key t for all tokens of the tiles that hold lo..hi-1; `base`: head segment.

    Folding a tile waits for the next one: its partial sums have then left the store buffer.
    """
    tile_bytes, row_bytes = of.tile_bytes(shape), of.k_row_bytes(shape)
    scale_bytes, turn = of.scale_row_bytes(shape), of.heads(shape) * HEAD_PARTS
    first, last = lo // TILE, (hi + TILE - 1) // TILE
    for tile in range(first, last):
        row = base + tile * tile_bytes
        scales = row + of.scale_offset(shape)
        place = parts + tile % 2 * turn
        for r in range(0, TILE, 2):
            for line in range(0, 2 * row_bytes, 64):
                prefetch_l1(row, line + _AHEAD * tile_bytes)
            key_step(shape, q, row, row + row_bytes, scales, scales + scale_bytes, place + 16 * r)
            row += 2 * row_bytes
            scales += 2 * scale_bytes
        if tile > first:
            fold(shape, parts + (tile - 1) % 2 * turn, s + 4 * TILE * (tile - 1))
    fold(shape, parts + (last - 1) % 2 * turn, s + 4 * TILE * (last - 1))


@jit
def softmax_head(s, lo, hi, softcap):
    """s[lo..hi-1] = exp(cap(s) - m) in place for one head; gives (m, sum)."""
    first, m = lo // TILE * TILE, set_f32(_NEVER)
    for i in range(first, hi, TILE):
        x = load_f32(s, 4 * i)
        if softcap != 0.0:
            x = vtanh(x * set_f32(1.0 / softcap)) * set_f32(softcap)
        if i < lo or i + TILE > hi:
            x = mask(x, lo - i, hi - i, _NEVER)
        store(s, 4 * i, x)
        m = vmax(m, x)
    top = hmax(m)
    m, total = set_f32(top), set_f32(0.0)
    for i in range(first, hi, TILE):
        p = vexp(load_f32(s, 4 * i) - m)
        if i < lo or i + TILE > hi:
            p = mask(p, lo - i, hi - i, 0.0)
        store(s, 4 * i, p)
        total = total + p
    return top, hsum(total)


@jit
def weigh_values(shape, base, lo, hi, s, out):
    """out[h] += sum of s[h][t] * value t for the tokens lo..hi-1 of the head segment at `base`.

    A few tiles at a time stay in L1 while their strips are summed one after the other.
    """
    tile_bytes, row_bytes = of.tile_bytes(shape), of.v_row_bytes(shape)
    scale_bytes, width = of.scale_row_bytes(shape), of.strip(shape)
    n_strips = of.vectors(shape) // width
    for tile in range(lo // TILE, (hi + TILE - 1) // TILE):
        at = base + tile * tile_bytes
        first, last = max(lo - tile * TILE, 0), min(hi - tile * TILE, TILE)
        ahead = at + _AHEAD * tile_bytes + of.v_offset(shape)
        share = TILE * row_bytes // n_strips
        for strip in range(n_strips):
            for line in range(strip * share, (strip + 1) * share, 64):
                prefetch_l1(ahead, line)
            rows = at + of.v_offset(shape) + strip_bytes(shape, strip)
            scales = at + of.v_scale_offset(shape) + strip * width // 2 * 2
            sums = no_sums(shape)
            for r in range(first, last):
                p = s + 4 * (tile * TILE + r)
                sums = value_step(
                    shape, sums, rows + r * row_bytes, scales + r * scale_bytes, strip & 1, p
                )
            add_sums(shape, sums, out + 64 * width * strip)


@jit
def _block(shape, q, base, lo, hi, groups, softcap, work, out, m, total):
    """One KV head over one block of tokens: unnormalised output, maximum and sum of each head."""
    n = of.heads(shape)
    s, parts = work, work + 4 * HEAD_SCORES
    for g in range(groups):
        key_scores(shape, q + g * n * 4 * of.padded(shape), base, lo, hi, parts, s)
        for h in range(n):
            m[g * n + h], total[g * n + h] = softmax_head(s + h * HEAD_SCORES, lo, hi, softcap)
        place = out + g * n * 4 * of.padded(shape)
        for i in range(n * of.vectors(shape)):
            store(place, 64 * i, set_f32(0.0))
        weigh_values(shape, base, lo, hi, s, place)


@jit
def _merge(shape, partial, m, total, n_blocks, stride, out):
    """Row = sum of partial outputs weighed by exp(m_b - max m) / sum, blocks in their order."""
    top = m[0]
    for i in range(1, n_blocks):
        top = max(top, m[i])
    for c in range(of.vectors(shape)):
        store(out, 64 * c, set_f32(0.0))
    sums = set_f32(0.0)
    for i in range(n_blocks):
        w = vexp(set_f32(m[i] - top))
        sums = sums + w * set_f32(total[i])
        for c in range(of.vectors(shape)):
            x = load_f32(partial, i * stride + 64 * c) * w
            store(out, 64 * c, load_f32(out, 64 * c) + x)
    r = 16.0 / hsum(sums)
    for c in range(of.vectors(shape)):
        store(out, 64 * c, load_f32(out, 64 * c) * set_f32(r))


@jit
def _items(
    shape, qp, segments, n_kv_heads, first, stop, groups, softcap, work, partial, m, total, begin,
    end,
):  # fmt: skip
    """Items begin .. end-1, each one KV head over one block of tokens; `work`: address."""
    block0 = first // SEGMENT
    for item in range(begin, end):
        i, j = item // n_kv_heads, item % n_kv_heads
        base = segments[block0 + i] + j * of.head_bytes(shape)
        lo = max(first - (block0 + i) * SEGMENT, 0)
        hi = min(stop - (block0 + i) * SEGMENT, SEGMENT)
        _block(
            shape, qp[j].ctypes.data, base, lo, hi, groups, softcap, work,
            partial[i, j].ctypes.data, m[i, j], total[i, j],
        )  # fmt: skip


WORK_BYTES = 4 * HEAD_SCORES + 2 * 4 * HEAD_PARTS


def make_decode(k, v, blocks, heads):
    """The kernel for KV types (k, v), rows of 32 * blocks and `heads` query heads at a time."""

    @jit(parallel=True)
    def decode_kernel(
        q, segments, n_kv_heads, first, stop, scale, softcap, out, qp, work, partial, m, total,
        threads,
    ):  # fmt: skip
        """q, out float32[1, H, E]; tokens first..stop-1.

        qp float32[J, rows, padded]; work uint8[threads, WORK_BYTES]; partial float32[blocks, J,
        rows, padded]; m, total float32[J, rows, blocks'] where rows = heads * groups >= G.
        Reads the K and V rows and scales of the tokens once.
        """
        _, n_heads, n = q.shape
        rows, row = qp.shape[1], qp.shape[2]
        group, groups, factor = n_heads // n_kv_heads, rows // heads, np.float32(scale)
        for j in range(n_kv_heads):
            for h in range(group):
                for i in range(n):
                    qp[j, h, i] = q[0, j * group + h, i] * factor
                for i in range(n, row):  # the last output stands here, or anything at first
                    qp[j, h, i] = 0.0
                if k == 2:
                    rotate_row(qp[j, h].ctypes.data, row, row & -row)
        n_blocks = (stop + SEGMENT - 1) // SEGMENT - first // SEGMENT
        items = n_blocks * n_kv_heads
        parts = min(threads, items)
        shape = of.shape_of(k, v, blocks, heads)
        if parts == 1:
            _items(
                shape, qp, segments, n_kv_heads, first, stop, groups, softcap, work.ctypes.data,
                partial, m, total, 0, items,
            )  # fmt: skip
        else:
            for part in prange(parts):
                _items(
                    of.shape_of(k, v, blocks, heads), qp, segments, n_kv_heads, first, stop, groups,
                    softcap, work[part].ctypes.data, partial, m, total,
                    items * part // parts, items * (part + 1) // parts,
                )  # fmt: skip
        stride = 4 * n_kv_heads * rows * row
        for j in range(n_kv_heads):
            for h in range(group):
                place = qp[j, h]
                _merge(
                    shape, partial[0, j, h].ctypes.data, m[:n_blocks, j, h], total[:n_blocks, j, h],
                    n_blocks, stride, place.ctypes.data,
                )  # fmt: skip
                if v == 2:
                    rotate_row(place.ctypes.data, row, row & -row)
                for i in range(n):
                    out[0, j * group + h, i] = place[i]

    return decode_kernel
