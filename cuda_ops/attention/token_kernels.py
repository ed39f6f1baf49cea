"""Kernels of attention of one token, split into parts of PART tokens that are merged afterwards.

    out[h] = softmax over tokens i of (cap(scale q[h] . k_i) + log_weights[h, i])  V

A program takes one part of one KV head for up to 8 of its query heads, STEP tokens at a time, so
that every row is read once. The tokens are those of a list, or a range of positions. Parts are
fixed: results do not depend on how many programs run at a time.

Tensor cores multiply 16 rows of f16 at least. Eight heads take them: q = high + low, two f16 that
hold 22 bits of it, and so the weights of the values. Stored numbers, f16 or integers, are exact in
f16, and their scales multiply sums over a block of 32: nothing is rounded to f16.
"""

import triton
import triton.language as tl

from .tiles import blocks_of, numbers, rotated, rows_of, scales_of, tile_of

PART = 256
HEADS = 8


@triton.jit
def _high_and_low(x):
    """x float32 (blocks, 8, n) as f16 (blocks, 16, n): what f16 keeps of it, and of the rest."""
    high = x.to(tl.float16)
    low = (x - high.to(tl.float32)).to(tl.float16)
    first = tl.arange(0, 2)[None, :, None, None] == 0
    both = tl.where(first, high[:, None, :, :], low[:, None, :, :])
    return tl.reshape(both, (x.shape[0], 16, x.shape[2]))


@triton.jit
def _sum_of_both(x):
    """(blocks, 16, n) -> (blocks, 8, n)."""
    return tl.sum(tl.reshape(x, (x.shape[0], 2, 8, x.shape[2])), 1)


@triton.jit
def capped(s, softcap):
    """softcap tanh(s / softcap)."""
    return softcap * (1.0 - 2.0 / (tl.exp(2.0 * s / softcap) + 1.0))


@triton.jit
def span(counts, j, window, LISTED: tl.constexpr):
    """(first token, first that is seen, how many from the first on) of a KV head.

    counts: the lengths of lists, or the position of the query. A window begins in the midst of a
    tile; what is read begins with the tile.
    """
    n = tl.load(counts + (j if LISTED else 0))
    if LISTED:
        return 0, 0, n
    seen = tl.maximum(n + 1 - window, 0)
    base = seen // 16 * 16
    return base, seen, n + 1 - base


@triton.jit
def attend_kernel(
    q, kv, index, counts, log_weights, partial, maxima, sums, scale, softcap, window, room,
    n_parts, weights_room, J: tl.constexpr, TILE_BYTES: tl.constexpr, K_ROW: tl.constexpr,
    V_ROW: tl.constexpr, V_AT: tl.constexpr, SCALES_AT: tl.constexpr, SCALES_ROW: tl.constexpr,
    V_SCALE: tl.constexpr, K_KIND: tl.constexpr, V_KIND: tl.constexpr, STORED: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCKS: tl.constexpr, ROTATION: tl.constexpr, LOG: tl.constexpr,
    FACTOR: tl.constexpr, G: tl.constexpr, STEP: tl.constexpr, PART: tl.constexpr,
    LISTED: tl.constexpr, WEIGHTED: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """partial (H, parts, 32 BLOCKS), maxima and sums (H, parts) of one part of a KV head."""
    part, j = tl.program_id(0), tl.program_id(1)
    base, seen, n = span(counts, j, window, LISTED)
    if part * PART >= n:
        return
    t = tl.arange(0, STEP)
    g = tl.program_id(2) * 8 + tl.arange(0, 8)
    h, real = j * G + g, g < G
    e = 32 * tl.arange(0, BLOCKS)[:, None, None] + tl.arange(0, 32)[None, None, :]
    at = q + h[None, :, None] * HEAD_DIM + e
    queries = tl.load(at, real[None, :, None] & (e < HEAD_DIM), 0.0) * scale
    if K_KIND == 2:
        queries = blocks_of(rotated(rows_of(queries), ROTATION, LOG, FACTOR))
    queries = _high_and_low(queries)
    top = tl.full((8,), float("-inf"), tl.float32)
    total = tl.zeros((8,), tl.float32)
    values = tl.zeros((BLOCKS, 16, 32), tl.float32)
    for first in range(part * PART, tl.minimum(part * PART + PART, n), STEP):
        i = first + t
        own = tl.minimum(i, n - 1)  # the last token again, where there are fewer: no load is masked
        token = tl.load(index + j * room + own) if LISTED else base + own
        at_tile, r = tile_of(token, j, J, TILE_BYTES)
        tile = kv + at_tile
        scales = tile + SCALES_AT + r * SCALES_ROW
        k = numbers(tile + r * K_ROW, K_KIND, BLOCKS, STORED)
        v = numbers(tile + V_AT + r * V_ROW, V_KIND, BLOCKS, STORED)
        of_blocks = _sum_of_both(tl.dot(queries, tl.permute(k, (0, 2, 1))))
        if K_KIND > 0:
            of_blocks *= scales_of(scales, BLOCKS, STORED)[:, None, :]
        s = tl.sum(of_blocks, 0)
        if CAPPED:
            s = capped(s, softcap)
        if WEIGHTED:
            of_lists = log_weights + h[:, None] * weights_room + own[None, :]
            s += tl.load(of_lists, real[:, None], 0.0)
        s = tl.where(((i < n) & (token >= seen))[None, :], s * 1.4426950408889634, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        p, old = tl.exp2(s - now[:, None]), tl.exp2(top - now)
        total = total * old + tl.sum(p, 1)
        shares = tl.broadcast_to(p[None, :, :], (BLOCKS, 8, STEP))
        if V_KIND > 0:  # times 256: scales are small, and f16 has no small numbers
            scales_v = scales_of(scales + V_SCALE, BLOCKS, STORED)
            shares = shares * (256.0 * scales_v)[:, None, :]
        values *= tl.reshape(tl.broadcast_to(old[None, :], (2, 8)), (16,))[None, :, None]
        values = tl.dot(_high_and_low(shares), v, values)
        top = now
    place = h * n_parts + part
    tl.store(maxima + place, top, real)
    tl.store(sums + place, total, real)
    at = partial + (place * (32 * BLOCKS))[None, :, None] + e
    less = 1.0 / 256.0 if V_KIND > 0 else 1.0
    tl.store(at, _sum_of_both(values) * less, real[None, :, None])


@triton.jit
def merge_kernel(
    partial, maxima, sums, counts, out, window, n_parts, V_KIND: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCKS: tl.constexpr, ROTATION: tl.constexpr, LOG: tl.constexpr,
    FACTOR: tl.constexpr, G: tl.constexpr, PART: tl.constexpr, LISTED: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """out (H, head_dim) from the parts of a head; undoes the rotation of V."""
    h, E = tl.program_id(0), 32 * BLOCKS
    _, _, n = span(counts, h // G, window, LISTED)
    parts = tl.cdiv(n, PART)
    e, p = tl.arange(0, 32 * BLOCKS), tl.arange(0, AT_ONCE)
    top, total = float("-inf"), 0.0
    value = tl.zeros((32 * BLOCKS,), tl.float32)
    for first in range(0, parts, AT_ONCE):
        i = first + p
        m = tl.load(maxima + h * n_parts + i, i < parts, float("-inf"))
        now = tl.maximum(top, tl.max(m, 0))
        old, share = tl.exp2(top - now), tl.exp2(m - now)
        s = tl.load(sums + h * n_parts + i, i < parts, 0.0)
        at = partial + (h * n_parts + i).to(tl.int64)[:, None] * E + e[None, :]
        x = tl.load(at, (i < parts)[:, None], 0.0)
        total = total * old + tl.sum(s * share, 0)
        value = value * old + tl.sum(x * share[:, None], 0)
        top = now
    value = value / total
    if V_KIND == 2:
        row = rotated(tl.reshape(value, (1, 32 * BLOCKS)), ROTATION, LOG, FACTOR)
        value = tl.reshape(row, (32 * BLOCKS,))
    tl.store(out + h * HEAD_DIM + e, value, e < HEAD_DIM)
