"""Attention of one new token over a list of tokens per KV head: the reading half of sparse decode.

A list passes in blocks of up to 1,024 tokens with the three sweeps of `steps`. Rows lie anywhere,
so they are asked for 64 tokens ahead, into L2: L1's few fill buffers would stall (measured in
the prototypes: 18-20 GB/s against 8).
"""

import numpy as np
from numba import prange

from ..cache import jit
from ..pointwise.tanh import vtanh
from ..simd import load_f32, load_one_f32, prefetch, set_f32, store
from . import shape as of
from .decode import softmax_head
from .layout import SEGMENT, TILE
from .rotation import rotate_row
from .steps import (
    HEAD_PARTS,
    HEAD_SCORES,
    add_sums,
    fold,
    key_step,
    no_sums,
    strip_bytes,
    value_step,
)
from .token import merge_blocks

AHEAD = 64  # tokens
PLACES = SEGMENT + AHEAD
WORK_BYTES = 4 * HEAD_SCORES + 2 * 4 * HEAD_PARTS + 8 * PLACES


@jit
def find_rows(shape, index, segments, head, places):
    """places[i] = address of token i's tile * 16 + its row in it; the last one fills the rest."""
    n = len(index)
    for i in range(n):
        t = np.int64(index[i])
        tile = segments[t // SEGMENT] + head * of.head_bytes(shape)
        tile += t % SEGMENT // TILE * of.tile_bytes(shape)
        places[i] = tile * TILE + t % TILE
    for i in range(n, len(places)):
        places[i] = places[n - 1]


@jit
def _fetch_key(shape, place):
    tile, r = place // TILE, place % TILE
    for line in range(0, of.k_row_bytes(shape), 64):
        prefetch(tile, r * of.k_row_bytes(shape) + line)
    if of.scale_row_bytes(shape):
        prefetch(tile, of.scale_offset(shape) + r * of.scale_row_bytes(shape))


@jit
def _fetch_value(shape, place):
    tile, r = place // TILE, place % TILE
    for line in range(0, of.v_row_bytes(shape), 64):
        prefetch(tile, of.v_offset(shape) + r * of.v_row_bytes(shape) + line)


@jit
def listed_scores(shape, q, places, n, parts, s):
    """s[h][i] = q[h] . key at places[i] for i < n, rounded up to 16."""
    row_bytes, scale_bytes = of.k_row_bytes(shape), of.scale_row_bytes(shape)
    turn = of.heads(shape) * HEAD_PARTS
    for i in range(min(AHEAD, n)):
        _fetch_key(shape, places[i])
    groups = (n + TILE - 1) // TILE
    for g in range(groups):
        part = parts + g % 2 * turn
        for i in range(g * TILE, (g + 1) * TILE, 2):
            _fetch_key(shape, places[i + AHEAD])
            _fetch_key(shape, places[i + 1 + AHEAD])
            tile0, r0 = places[i] // TILE, places[i] % TILE
            tile1, r1 = places[i + 1] // TILE, places[i + 1] % TILE
            key_step(
                shape, q, tile0 + r0 * row_bytes, tile1 + r1 * row_bytes,
                tile0 + of.scale_offset(shape) + r0 * scale_bytes,
                tile1 + of.scale_offset(shape) + r1 * scale_bytes, part + 16 * (i % TILE),
            )  # fmt: skip
        if g > 0:
            fold(shape, parts + (g - 1) % 2 * turn, s + 4 * TILE * (g - 1))
    fold(shape, parts + (groups - 1) % 2 * turn, s + 4 * TILE * (groups - 1))


@jit
def weigh_listed(shape, places, n, s, out):
    """out[h] += sum of s[h][i] * value at places[i]; weights beyond n are 0 up to 16."""
    row_bytes, scale_bytes, width = (
        of.v_row_bytes(shape),
        of.scale_row_bytes(shape),
        of.strip(shape),
    )
    for i in range(min(AHEAD, n)):
        _fetch_value(shape, places[i])
    for first in range(0, n, TILE):
        for i in range(first + AHEAD, first + AHEAD + TILE):
            _fetch_value(shape, places[i])
        for strip in range(of.vectors(shape) // width):
            column = of.v_offset(shape) + strip_bytes(shape, strip)
            scale = of.v_scale_offset(shape) + strip * width // 2 * 2
            sums = no_sums(shape)
            for i in range(first, first + TILE):
                tile, r = places[i] // TILE, places[i] % TILE
                sums = value_step(
                    shape, sums, tile + column + r * row_bytes, tile + scale + r * scale_bytes,
                    strip & 1, s + 4 * i,
                )  # fmt: skip
            add_sums(shape, sums, out + 64 * width * strip)


@jit
def _add_weights(s, n, weights, softcap):
    """s[i] = cap(s[i]) + weights[i]."""
    for i in range(0, n, TILE):
        x = load_f32(s, 4 * i)
        if softcap != 0.0:
            x = vtanh(x * set_f32(1.0 / softcap)) * set_f32(softcap)
        store(s, 4 * i, x)
    for i in range(n):
        store(s, 4 * i, load_one_f32(s, 4 * i) + weights[i])


@jit
def _block(shape, q, n, groups, softcap, log_weights, first, work, places, out, m, total):
    """One KV head over the n tokens at `places`; log_weights[head][first + i] joins score i."""
    heads, n_weights = of.heads(shape), len(log_weights)
    s, parts = work, work + 4 * HEAD_SCORES
    for g in range(groups):
        listed_scores(shape, q + g * heads * 4 * of.padded(shape), places, n, parts, s)
        for h in range(heads):
            row, line = g * heads + h, s + h * HEAD_SCORES
            if row < n_weights:
                _add_weights(line, n, log_weights[row, first : first + n], softcap)
            m[row], total[row] = softmax_head(line, 0, n, 0.0 if n_weights else softcap)
        place = out + g * heads * 4 * of.padded(shape)
        for i in range(heads * of.vectors(shape)):
            store(place, 64 * i, set_f32(0.0))
        weigh_listed(shape, places, n, s, place)


@jit
def _items(
    shape, qp, index, counts, segments, groups, softcap, log_weights, work, places, partial, m,
    total, begin, end,
):  # fmt: skip
    """Items begin .. end-1: item i is block i // J of KV head i % J, where it has that many."""
    n_kv_heads = len(counts)
    group = len(log_weights) // n_kv_heads
    for item in range(begin, end):
        i, j = item // n_kv_heads, item % n_kv_heads
        first, last = i * SEGMENT, min((i + 1) * SEGMENT, counts[j])
        if first < last:
            find_rows(shape, index[j, first:last], segments, j, places)
            _block(
                shape, qp[j].ctypes.data, last - first, groups, softcap,
                log_weights[j * group : (j + 1) * group], first, work, places,
                partial[i, j].ctypes.data, m[i, j], total[i, j],
            )  # fmt: skip


def make_gathered(k, v, blocks, heads):
    """The kernel for KV types (k, v), rows of 32 * blocks and `heads` query heads at a time."""

    @jit(parallel=True)
    def gathered_kernel(
        q, index, counts, segments, scale, softcap, log_weights, out, qp, work, places, partial, m,
        total, threads,
    ):  # fmt: skip
        """q, out float32[1, H, E]; index uint32[J, room], counts int64[J] of them are tokens.

        log_weights float32[H, room] or [0, 0]; scratch as GatherScratch has it.
        Reads the K and V rows and scales of the listed tokens once.
        """
        n_kv_heads = len(counts)
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
        longest = 0
        for j in range(n_kv_heads):
            longest = max(longest, counts[j])
        items = (longest + SEGMENT - 1) // SEGMENT * n_kv_heads
        parts = min(threads, items)
        shape = of.shape_of(k, v, blocks, heads)
        if parts == 1:
            _items(
                shape, qp, index, counts, segments, groups, softcap, log_weights, work.ctypes.data,
                places[0], partial, m, total, 0, items,
            )  # fmt: skip
        else:
            for part in prange(parts):
                _items(
                    of.shape_of(k, v, blocks, heads), qp, index, counts, segments, groups, softcap,
                    log_weights, work[part].ctypes.data, places[part], partial, m, total,
                    items * part // parts, items * (part + 1) // parts,
                )  # fmt: skip
        for j in range(n_kv_heads):
            n_blocks = (counts[j] + SEGMENT - 1) // SEGMENT
            for h in range(group):
                place = qp[j, h]
                merge_blocks(
                    shape, partial[0, j, h].ctypes.data, m[0, j, h:].ctypes.data,
                    total[0, j, h:].ctypes.data, n_blocks, n_kv_heads * rows, place.ctypes.data,
                )  # fmt: skip
                if v == 2:
                    rotate_row(place.ctypes.data, row, row & -row)
                for i in range(n):
                    out[0, j * group + h, i] = place[i]

    return gathered_kernel
