"""Attention of one KV head's query heads to a block of tokens, tile by tile, in memory's order.

    x = scores of 16 keys      m' = max(m, x) where x exceeds m by more than 8, else m
    p = exp(x - m')            total = exp(m - m') total + sum of p
                               sums  = exp(m - m') sums + sum of p times its value

Each tile is read once, for all heads that share it, and its working memory stays in L1.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
"""

from typing import NamedTuple

import numpy as np

from ....jit.cached import jit
from ....jit.launch.views import address
from ....jit.simd import (
    any_above,
    hmax,
    hsum,
    load_f32,
    load_one_f32,
    load_tail,
    mask,
    set_f32,
    store,
    vexp,
    vtanh,
)
from ..layout import TILE
from ..work import HIDDEN, PARTS_BYTES, PREFETCH_TILES, TILE_SCALES, TILE_SCORES, TILE_WORK
from .prefetch import prefetch_scales, prefetch_value
from .products import (
    add_value,
    load_sums,
    no_sums,
    store_sums,
    strip_offset,
    sum_parts,
    widen_scales,
)
from .scores import sweep_keys

_SLACK = 8.0  # a score may exceed m by this; exp(8) = 2,981 is as exact as smaller numbers


class HeadBlock(NamedTuple):
    """One KV head's query heads and their outputs for a block of tokens: addresses of float32, and
    numbers."""

    queries: int
    """[row][padded]: query heads, scaled; rotated if K is, split if K is multiplied as integers."""
    rounds: int
    """Each has `heads` rows."""
    softcap: float
    work: int
    """`work.token_work_bytes`"""
    sums: int
    """[row][padded]"""
    maxima: int
    """[row]"""
    totals: int
    """[row]"""


class LogWeights(NamedTuple):
    """Addends of the scores of a tile or block of tokens."""

    place: int
    """Address of the first token's weight for row 0."""
    stride: int
    """Bytes from row to row."""
    n_rows: int


NO_WEIGHTS = LogWeights(0, 0, 0)


@jit
def head_block(shape, rounds, softcap, work, outputs, i, j):
    """KV head j in block i of `outputs` (BlockOutputs); its queries follow the totals in `work`."""
    queries = work + TILE_WORK + TILE_SCORES * rounds * shape.heads
    sums, maxima = address(outputs.sums[i, j]), address(outputs.maxima[i, j])
    totals = address(outputs.totals[i, j])
    return HeadBlock(queries, rounds, softcap, work, sums, maxima, totals)


@jit
def _raise(shape, x, m, total, sums):
    """Raise a row's maximum to that of x, and rescale its sums."""
    top = max(load_one_f32(m, 0), hmax(x))
    w = vexp(set_f32(load_one_f32(m, 0) - top))
    store(m, 0, top)
    store(total, 0, load_f32(total, 0) * w)
    for c in range(shape.vectors):
        store(sums, 64 * c, load_f32(sums, 64 * c) * w)


@jit
def _weigh(shape, block, s, first, stop, row0, weights, fresh):
    """s[h] = exp(cap(s[h]) + weight - m[h]) of the rows from `row0` on, 0 outside first..stop-1."""
    softcap, lane_totals = block.softcap, block.work + TILE_WORK
    whole = first <= 0 and stop >= TILE
    for h in range(shape.heads):
        x, row = load_f32(s, TILE_SCORES * h), row0 + h
        m, total = block.maxima + 4 * row, lane_totals + TILE_SCORES * row
        if softcap != 0.0:
            x = vtanh(x * set_f32(1.0 / softcap)) * set_f32(softcap)
        if row < weights.n_rows:
            x = x + load_tail(weights.place + row * weights.stride, 0, min(stop, TILE))
        if not whole:
            x = mask(x, first, stop, HIDDEN)
        if fresh:
            store(m, 0, hmax(x))
        elif any_above(x, set_f32(load_one_f32(m, 0) + np.float32(_SLACK))):
            _raise(shape, x, m, total, block.sums + 4 * row * shape.padded)
        p = vexp(x - set_f32(load_one_f32(m, 0)))
        if not whole:
            p = mask(p, first, stop, 0.0)
        store(s, TILE_SCORES * h, p)
        store(total, 0, p if fresh else load_f32(total, 0) + p)


@jit
def _add_values(shape, rows, scales, first, stop, s, fresh, sums, later):
    """sums[h] += sum of s[h][t] * value t for first <= t < stop. Prefetches values of `later`."""
    row_bytes = shape.v_row_bytes
    width = shape.strip
    for strip in range(shape.vectors // width):
        row, scale = rows + strip_offset(shape, strip), scales + strip * width // 2 * 4 * TILE
        place = sums + 64 * width * strip
        added = no_sums(shape) if fresh else load_sums(shape, place)
        for t in range(first, stop):
            prefetch_value(shape, later, strip * TILE + t)
            added = add_value(
                shape, added, row + t * row_bytes, scale + 4 * t, strip & 1, s + 4 * t
            )
        store_sums(shape, added, place)


@jit
def attend_tile(shape, block, tile, later, first, stop, weights, fresh):
    """Add a tile's tokens first..stop-1 (within 0..15) to the sums of `block`.

    fresh: this is the block's first tile, where its sums start. later: a tile, or rows of a list,
    to prefetch. Each row's total stays in the block's work, lane by lane, until `put_totals`.
    """
    heads, row_bytes = shape.heads, 4 * shape.padded
    parts, scales = block.work, block.work + PARTS_BYTES
    s, values = scales + TILE_SCALES, tile + shape.v_offset
    prefetch_scales(shape, later)
    widen_scales(shape, tile + shape.scale_offset, scales)
    value_scales = scales + 2 * TILE * shape.v_scale
    for row in range(0, block.rounds * heads, heads):
        queries = block.queries + row * row_bytes
        sweep_keys(shape, queries, tile, scales, parts, s, TILE_SCORES, later)
        sum_parts(shape, parts, s, TILE_SCORES)
        _weigh(shape, block, s, first, stop, row, weights, fresh)
        sums, begin, end = block.sums + row * row_bytes, max(first, 0), min(stop, TILE)
        _add_values(shape, values, value_scales, begin, end, s, fresh, sums, later)


@jit
def attend_block(shape, block, base, first, stop, weights, next_base):
    """Sums, maximum and total of each row of `block` over tokens first..stop-1 of a segment.

    base: address of the KV head's part of it; next_base: of the segment that comes next.
    """
    tile_bytes = shape.tile_bytes
    stop_tile = (stop + TILE - 1) // TILE
    for i in range(first // TILE, stop_tile):
        later = base + (i + PREFETCH_TILES) * tile_bytes
        if i + PREFETCH_TILES >= stop_tile:
            later = next_base + (i + PREFETCH_TILES - stop_tile) * tile_bytes
        tile, fresh = base + i * tile_bytes, i == first // TILE
        tile_weights = LogWeights(weights.place + 4 * TILE * i, weights.stride, weights.n_rows)
        begin, end = first - i * TILE, stop - i * TILE
        attend_tile(shape, block, tile, later, begin, end, tile_weights, fresh)
    put_totals(shape, block)


@jit
def put_totals(shape, block):
    """Sum each row's total over its lanes, which `attend_tile` has left."""
    for row in range(block.rounds * shape.heads):
        total = hsum(load_f32(block.work, TILE_WORK + TILE_SCORES * row))
        store(block.totals, 4 * row, total)
