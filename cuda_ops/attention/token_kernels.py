"""Kernels of attention of one token, split into parts of PART tokens that are merged afterwards.

    out[h] = softmax over tokens i of cap(scale q[h] . k_i)  V

A program takes one part of one KV head for up to 8 of its query heads, STEP tokens at a time, so
that every row is read once. The tokens are those of a list, or a range of positions. Parts are
fixed: results do not depend on how many programs run at a time.

Tensor cores multiply 16 rows of f16 at least. Eight heads take them: q = high + low, two f16 that
hold 22 bits of it, and so the weights of the values. Stored numbers, f16 or integers, are exact in
f16, and their scales multiply sums over a block of 32: nothing is rounded to f16.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .tiles import F16, Q4_0, blocks_of, numbers, rotated, rows_at, rows_of, scales_of

PART = 256
HEADS = 8


class Query(NamedTuple):
    """Query heads of one token, float32 (1, H, E), and how their products are scaled."""

    q: torch.Tensor
    scale: float
    softcap: float


class Read(NamedTuple):
    """The tokens that are read: lists, or those up to a position.

    index int32 (J, room): the tokens of each KV head (not read where there are no lists); counts
    int32: how many of them count (J,), or the position of the query (1,). window: how many of the
    last tokens are seen, where there are no lists.
    """

    index: torch.Tensor
    counts: torch.Tensor
    room: int
    window: int


class Parts(NamedTuple):
    """Of n parts: weighted sums of values (H, n, width), maxima and sums (H, n), float32."""

    weighted: torch.Tensor
    maxima: torch.Tensor
    sums: torch.Tensor
    n: int


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
def span(read, j, LISTED: tl.constexpr):
    """(first token, first that is seen, how many from the first on) of a KV head.

    A window begins in the midst of a tile; what is read begins with the tile.
    """
    n = tl.load(read.counts + (j if LISTED else 0))
    if LISTED:
        return 0, 0, n
    seen = tl.maximum(n + 1 - read.window, 0)
    base = seen // 16 * 16
    return base, seen, n + 1 - base


@triton.jit
def attend_kernel(
    query, kv, read, parts, T: tl.constexpr, G: tl.constexpr, STEP: tl.constexpr,
    PART: tl.constexpr, LISTED: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """One part of a KV head, for up to 8 of its G query heads."""
    BLOCKS: tl.constexpr = T.blocks
    part, j = tl.program_id(0), tl.program_id(1)
    base, seen, n = span(read, j, LISTED)
    if part * PART >= n:
        return
    t = tl.arange(0, STEP)
    g = tl.program_id(2) * 8 + tl.arange(0, 8)
    h, real = j * G + g, g < G
    e = 32 * tl.arange(0, BLOCKS)[:, None, None] + tl.arange(0, 32)[None, None, :]
    at = query.q + h[None, :, None] * T.layout.head_dim + e
    queries = tl.load(at, real[None, :, None] & (e < T.layout.head_dim), 0.0) * query.scale
    if T.k_type == Q4_0:
        queries = blocks_of(rotated(rows_of(queries), T))
    queries = _high_and_low(queries)
    top = tl.full((8,), float("-inf"), tl.float32)
    total = tl.zeros((8,), tl.float32)
    values = tl.zeros((BLOCKS, 16, 32), tl.float32)
    for first in range(part * PART, tl.minimum(part * PART + PART, n), STEP):
        i = first + t
        # The last token again, where there are fewer: no load is masked.
        inside = tl.minimum(i, n - 1)
        token = tl.load(read.index + j * read.room + inside) if LISTED else base + inside
        k_row, v_row, k_scale, v_scale = rows_at(kv, token, j, T)
        k, v = numbers(k_row, T.k_type, T), numbers(v_row, T.v_type, T)
        of_blocks = _sum_of_both(tl.dot(queries, tl.permute(k, (0, 2, 1))))
        if T.k_type != F16:
            of_blocks *= scales_of(k_scale, T)[:, None, :]
        s = tl.sum(of_blocks, 0)
        if CAPPED:
            s = capped(s, query.softcap)
        s = tl.where(((i < n) & (token >= seen))[None, :], s * 1.4426950408889634, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        p, old = tl.exp2(s - now[:, None]), tl.exp2(top - now)
        total = total * old + tl.sum(p, 1)
        shares = tl.broadcast_to(p[None, :, :], (BLOCKS, 8, STEP))
        if T.v_type != F16:  # times 256: scales are small, and f16 has no small numbers
            shares = shares * (256.0 * scales_of(v_scale, T))[:, None, :]
        values *= tl.reshape(tl.broadcast_to(old[None, :], (2, 8)), (16,))[None, :, None]
        values = tl.dot(_high_and_low(shares), v, values)
        top = now
    place = h * parts.n + part
    tl.store(parts.maxima + place, top, real)
    tl.store(parts.sums + place, total, real)
    at = parts.weighted + (place * T.width)[None, :, None] + e
    less = 1.0 / 256.0 if T.v_type != F16 else 1.0
    tl.store(at, _sum_of_both(values) * less, real[None, :, None])


@triton.jit
def merge_kernel(
    parts, read, out, T: tl.constexpr, G: tl.constexpr, PART: tl.constexpr, LISTED: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """out (H, head_dim) from the parts of a head; undoes the rotation of V."""
    WIDTH: tl.constexpr = T.width
    h = tl.program_id(0)
    _, _, n = span(read, h // G, LISTED)
    n_parts = tl.cdiv(n, PART)
    e, p = tl.arange(0, WIDTH), tl.arange(0, AT_ONCE)
    top, total = float("-inf"), 0.0
    value = tl.zeros((WIDTH,), tl.float32)
    for first in range(0, n_parts, AT_ONCE):
        i = first + p
        m = tl.load(parts.maxima + h * parts.n + i, i < n_parts, float("-inf"))
        now = tl.maximum(top, tl.max(m, 0))
        old, share = tl.exp2(top - now), tl.exp2(m - now)
        s = tl.load(parts.sums + h * parts.n + i, i < n_parts, 0.0)
        at = parts.weighted + (h * parts.n + i).to(tl.int64)[:, None] * WIDTH + e[None, :]
        x = tl.load(at, (i < n_parts)[:, None], 0.0)
        total = total * old + tl.sum(s * share, 0)
        value = value * old + tl.sum(x * share[:, None], 0)
        top = now
    value = value / total
    if T.v_type == Q4_0:
        value = tl.reshape(rotated(tl.reshape(value, (1, WIDTH)), T), (WIDTH,))
    tl.store(out + h * T.layout.head_dim + e, value, e < T.layout.head_dim)
