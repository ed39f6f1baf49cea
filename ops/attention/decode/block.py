"""One KV head's query heads over a block of tokens, in one pass over its keys and values.

Keys are swept before values, half of each tile, which memory answers half as fast as whole tiles in
their order. So the block that follows is asked for in its order while this one is swept.
"""

from ...cache import jit
from ...pointwise.tanh import vtanh
from ...simd import hmax, hsum, load_f32, prefetch, prefetch_l1, set_f32, store, vexp, vmax
from .. import shape as of
from ..layout import TILE
from ..work import HEAD_SCORES, PARTS_BYTES
from .steps import (
    add_sums,
    fold,
    key_step,
    mask,
    no_sums,
    strip_bytes,
    tile_parts,
    two_keys,
    value_step,
    widen_scales,
)

_NEVER = -1e30  # score of a key out of sight: its exponential is 0
_AHEAD = 2  # tiles: about the time that memory takes to answer


@jit
def _ask(base, start, n_bytes):
    """Have bytes start .. start+n_bytes-1 of the head segment at `base` come into L2; 0: none."""
    if base:
        for line in range(0, n_bytes, 64):
            prefetch(base, start + line)


@jit
def key_scores(shape, q, base, lo, hi, parts, s, following):
    """s[h][t] = q[h] . key t for all tokens of the tiles that hold lo..hi-1; `base`: head segment.

    The first half of `following`, the head segment that is read next, is asked for (0: nothing).
    Folding a tile waits for the next one: its partial sums have then left the store buffer.
    """
    tile_bytes, row_bytes = of.tile_bytes(shape), of.k_row_bytes(shape)
    scale_bytes, turn = 2 * of.scale_row_bytes(shape), tile_parts(shape)
    first, last, share = lo // TILE, (hi + TILE - 1) // TILE, tile_bytes // (2 * TILE)
    for tile in range(first, last):
        row = base + tile * tile_bytes
        scales = parts + PARTS_BYTES
        widen_scales(shape, row + of.scale_offset(shape), scales)
        place = parts + tile % 2 * turn
        for r in range(0, TILE, 2):
            for line in range(0, 2 * row_bytes, 64):
                prefetch_l1(row, line + _AHEAD * tile_bytes)
            _ask(following, (tile * TILE + r) * share, 2 * share)
            key_step(shape, q, row, row + row_bytes, scales, scales + scale_bytes, place)
            place += two_keys(shape)
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
def weigh_values(shape, base, lo, hi, s, out, following, scales):
    """out[h] += sum of s[h][t] * value t for the tokens lo..hi-1 of the head segment at `base`.

    A few tiles at a time stay in L1 while their strips are summed one after the other. The second
    half of `following` is asked for. `scales`: room for those of a tile.
    """
    tile_bytes, row_bytes = of.tile_bytes(shape), of.v_row_bytes(shape)
    scale_bytes, width = 2 * of.scale_row_bytes(shape), of.strip(shape)
    n_strips = of.vectors(shape) // width
    for tile in range(lo // TILE, (hi + TILE - 1) // TILE):
        at = base + tile * tile_bytes
        widen_scales(shape, at + of.scale_offset(shape), scales)
        first, last = max(lo - tile * TILE, 0), min(hi - tile * TILE, TILE)
        ahead = at + _AHEAD * tile_bytes + of.v_offset(shape)
        share, other_share = TILE * row_bytes // n_strips, tile_bytes // (2 * n_strips)
        for strip in range(n_strips):
            for line in range(strip * share, (strip + 1) * share, 64):
                prefetch_l1(ahead, line)
            half = of.head_bytes(shape) // 2 + tile * (tile_bytes // 2)
            _ask(following, half + strip * other_share, other_share)
            rows = at + of.v_offset(shape) + strip_bytes(shape, strip)
            scale = scales + 2 * of.v_scale(shape) + strip * width // 2 * 4
            sums = no_sums(shape)
            for r in range(first, last):
                p = s + 4 * (tile * TILE + r)
                sums = value_step(
                    shape, sums, rows + r * row_bytes, scale + r * scale_bytes, strip & 1, p
                )
            add_sums(shape, sums, out + 64 * width * strip)


@jit
def attend_block(shape, q, base, lo, hi, groups, softcap, work, out, m, total, following):
    """One KV head over one block of tokens: unnormalised output, maximum and sum of each head.

    `following`: head segment of the block that comes next.
    """
    n = of.heads(shape)
    s, parts = work, work + 4 * HEAD_SCORES
    for g in range(groups):
        key_scores(shape, q + g * n * 4 * of.padded(shape), base, lo, hi, parts, s, following)
        for h in range(n):
            top, whole = softmax_head(s + h * HEAD_SCORES, lo, hi, softcap)
            store(m, 4 * (g * n + h), top)
            store(total, 4 * (g * n + h), whole)
        place = out + g * n * 4 * of.padded(shape)
        for i in range(n * of.vectors(shape)):
            store(place, 64 * i, set_f32(0.0))
        weigh_values(shape, base, lo, hi, s, place, following, parts + PARTS_BYTES)
        following = 0  # has been asked for
