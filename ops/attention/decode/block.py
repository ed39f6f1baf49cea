"""One KV head's query heads over a block of tokens, tile by tile, in the order of memory.

    x = scores of 16 keys      m' = max(m, x), where x exceeds m by much; else m
    p = exp(x - m')            total = exp(m - m') total + sum of p
                               out   = exp(m - m') out + sum of p times its value

Keys and values come as they lie, each tile once for all heads that share it, and what a tile needs
stays in L1.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
"""

import numpy as np

from ....jit.cached import jit
from ....jit.simd import hmax, hsum, load_f32, load_one_f32, set_f32, store, vexp
from ...pointwise.tails import load_tail
from ...pointwise.tanh import vtanh
from .. import shape as of
from ..layout import TILE
from ..work import PARTS_BYTES, TILE_SCALES, TILE_SCORES, TILE_WORK
from .ahead import ask_scales, ask_value
from .scores import sweep_keys
from .steps import (
    any_above,
    fold,
    load_sums,
    mask,
    no_sums,
    store_sums,
    strip_bytes,
    value_step,
    widen_scales,
)

_NEVER = -1e30  # score of a key out of sight: its exponential is 0
_SLACK = 8.0  # by which a score may exceed m: its exponential is at most 2,981, as exact as any
_AHEAD = 2  # tiles: about the time that memory takes to answer
NO_WEIGHTS = (0, 0, 0)
"""Of `attend_block`: no score has a weight."""


@jit
def _raise(shape, x, m, total, out):
    """A head's new maximum, which x exceeds; what was summed below the old one shrinks to fit."""
    top = max(load_one_f32(m, 0), hmax(x))
    w = vexp(set_f32(load_one_f32(m, 0) - top))
    store(m, 0, top)
    store(total, 0, load_f32(total, 0) * w)
    for c in range(of.vectors(shape)):
        store(out, 64 * c, load_f32(out, 64 * c) * w)


@jit
def _weigh(shape, s, lo, hi, softcap, first, weights, fresh, m, totals, out):
    """s[h] = exp(cap(s[h]) + weight - m[h]) of the heads from `first` on, 0 outside lo..hi-1."""
    n, (place, stride, n_weights) = of.heads(shape), weights
    whole = lo <= 0 and hi >= TILE
    for h in range(n):
        x, row = load_f32(s, TILE_SCORES * h), first + h
        total = totals + TILE_SCORES * row
        if softcap != 0.0:
            x = vtanh(x * set_f32(1.0 / softcap)) * set_f32(softcap)
        if row < n_weights:
            x = x + load_tail(place + row * stride, 0, min(hi, TILE))
        if not whole:
            x = mask(x, lo, hi, _NEVER)
        if fresh:
            store(m, 4 * row, hmax(x))
        elif any_above(x, set_f32(load_one_f32(m, 4 * row) + np.float32(_SLACK))):
            _raise(shape, x, m + 4 * row, total, out + 4 * row * of.padded(shape))
        p = vexp(x - set_f32(load_one_f32(m, 4 * row)))
        if not whole:
            p = mask(p, lo, hi, 0.0)
        store(s, TILE_SCORES * h, p)
        store(total, 0, p if fresh else load_f32(total, 0) + p)


@jit
def _add_values(shape, rows, scales, lo, hi, s, fresh, out, ahead):
    """out[h] += sum of s[h][t] * value t for lo <= t < hi; those `ahead` are asked for."""
    row_bytes, scale_bytes = of.v_row_bytes(shape), 2 * of.scale_row_bytes(shape)
    width = of.strip(shape)
    for strip in range(of.vectors(shape) // width):
        row, scale = rows + strip_bytes(shape, strip), scales + strip * width // 2 * 4
        place = out + 64 * width * strip
        sums = no_sums(shape) if fresh else load_sums(shape, place)
        for t in range(lo, hi):
            ask_value(shape, ahead, strip * TILE + t)
            sums = value_step(
                shape, sums, row + t * row_bytes, scale + t * scale_bytes, strip & 1, s + 4 * t
            )
        store_sums(shape, sums, place)


@jit
def attend_tile(shape, q, tile, ahead, lo, hi, groups, softcap, weights, fresh, work, m, out):
    """Add a tile's tokens lo..hi-1 (cut to 0..15) to each head's sums; `fresh`: which begin here.

    q float32 [groups * heads][padded], m float32 [groups * heads] and out, as q, are addresses.
    weights: address of the tile's first for head 0, bytes from a head's to the next one's, and how
    many heads have any. What is `ahead`, a tile or a list's rows, is asked for.
    """
    heads, row_bytes = of.heads(shape), 4 * of.padded(shape)
    parts, scales = work, work + PARTS_BYTES
    s, totals = scales + TILE_SCALES, work + TILE_WORK
    ask_scales(shape, ahead, 0)
    widen_scales(shape, tile + of.scale_offset(shape), scales)
    for first in range(0, groups * heads, heads):
        sweep_keys(shape, q + first * row_bytes, tile, scales, parts, ahead)
        fold(shape, parts, s, TILE_SCORES)
        _weigh(shape, s, lo, hi, softcap, first, weights, fresh, m, totals, out)
        _add_values(
            shape, tile + of.v_offset(shape), scales + 2 * of.v_scale(shape), max(lo, 0),
            min(hi, TILE), s, fresh, out + first * row_bytes, ahead,
        )  # fmt: skip


@jit
def attend_block(
    shape, q, base, lo, hi, groups, softcap, weights, work, out, m, total, following
):  # fmt: skip
    """One KV head over one block of tokens: unnormalised output, reference m and sum of each head.

    `following`: head segment of the block that comes next. weights: as `attend_tile` has them.
    """
    tile_bytes = of.tile_bytes(shape)
    place, stride, n_weights = weights
    last = (hi + TILE - 1) // TILE
    for i in range(lo // TILE, last):
        ahead = base + (i + _AHEAD) * tile_bytes
        if i + _AHEAD >= last:
            ahead = following + (i + _AHEAD - last) * tile_bytes
        attend_tile(
            shape, q, base + i * tile_bytes, ahead, lo - i * TILE, hi - i * TILE, groups, softcap,
            (place + 4 * TILE * i, stride, n_weights), i == lo // TILE, work, m, out,
        )  # fmt: skip
    put_totals(shape, groups, work, total)


@jit
def put_totals(shape, groups, work, total):
    """Each head's sum, of what `attend_tile` left in its work."""
    for row in range(groups * of.heads(shape)):
        store(total, 4 * row, hsum(load_f32(work, TILE_WORK + TILE_SCORES * row)))
