"""The kernels of all types: products with few vectors, and rows as floats."""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .unpack import codes, scale_and_minimum


@cache
def magic(device: torch.device) -> torch.Tensor:
    """2^23 as bits of a float, in memory: the argument `magic` of the kernels, see `unpack`."""
    return torch.tensor([0x4B000000], dtype=torch.int32, device=device).view(torch.uint32)


class Vectors(NamedTuple):
    """The vectors x float32 (n_tokens, n_cols) that matrices are multiplied by."""

    x: torch.Tensor
    n_cols: int
    n_tokens: int


@triton.jit
def _add_steps(
    totals, planes, vectors, row, token, first, magic, STEPS: tl.constexpr, F: tl.constexpr
):  # fmt: skip
    """totals, (ROWS, STEPS) for each token from `token` on, plus products of steps from `first`."""
    x, n_cols, n_tokens = vectors
    LANES: tl.constexpr = F.lanes
    ROWS: tl.constexpr = row.shape[0]
    n_steps = (n_cols + F.step - 1) // F.step
    step = first + tl.arange(0, STEPS)
    here = (step < n_steps)[None, :]
    n: tl.constexpr = F.grain // F.lanes
    for i in tl.static_range(F.step // F.grain):
        parts = _zeros(len(totals), ROWS, STEPS, LANES)
        of_x = _zeros(len(totals), 1, STEPS, LANES)
        for k in tl.static_range(n):
            w = codes(planes, row, step, here, n_steps, magic, i * n + k, F)
            column = (step * F.step + (i * F.grain + k * F.lanes))[:, None]
            column += tl.arange(0, LANES)[None, :]
            inside = column < n_cols
            new, sums = (), ()
            for t in tl.static_range(len(totals)):
                given = inside if len(totals) == 1 else inside & (token + t < n_tokens)
                xs = tl.load(x + (token + t) * n_cols + column, given, 0.0)[None]
                new = new + (parts[t] + w * xs,)
                if F.has_minimum:
                    sums = sums + (of_x[t] + xs,)
            parts = new
            of_x = sums
        totals = _scaled(totals, parts, of_x, planes, row, step, here, n_steps, i, F)
        if F.name == "Q5_1" and len(totals) > 1:
            tl.debug_barrier()  # or so many loads of later grains come first that registers spill
    return totals


@triton.jit
def _zeros(N: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr, LANES: tl.constexpr):
    zeros = ()
    for _ in tl.static_range(N):
        zeros = zeros + (tl.zeros((ROWS, STEPS, LANES), tl.float32),)
    return zeros


@triton.jit
def _scaled(
    totals, parts, of_x, planes, row, step, here, n_steps, i: tl.constexpr, F: tl.constexpr
):  # fmt: skip
    """totals + scale parts - minimum of_x, for the grain number i of each step."""
    new = ()
    if F.is_float:
        for t in tl.static_range(len(totals)):
            new = new + (totals[t] + tl.sum(parts[t], 2),)
    else:
        scale, minimum = scale_and_minimum(planes, row, step, here, n_steps, i, F)
        for t in tl.static_range(len(totals)):
            total = totals[t] + scale * tl.sum(parts[t], 2)
            if F.has_minimum:
                total -= minimum * tl.sum(of_x[t], 2)
            new = new + (total,)
    return new


@triton.jit
def _tile(
    tile, vectors, planes, out, n_rows, stride, magic, FORMATS: tl.constexpr, SHAPES: tl.constexpr,
    TOKENS: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Products of ROWS rows of matrix M with TOKENS tokens."""
    F: tl.constexpr = FORMATS[M]
    ROWS: tl.constexpr = SHAPES[M][0]
    STEPS: tl.constexpr = SHAPES[M][1]
    token = tl.program_id(1) * TOKENS
    r = tile * ROWS + tl.arange(0, ROWS)
    row = tl.minimum(r, n_rows - 1).to(tl.int64)
    totals = ()
    for _ in tl.static_range(TOKENS):
        totals = totals + (tl.zeros((ROWS, STEPS), tl.float32),)
    for first in range(0, (vectors.n_cols + F.step - 1) // F.step, STEPS):
        totals = _add_steps(totals, planes, vectors, row, token, first, magic, STEPS, F)
    for t in tl.static_range(TOKENS):
        at = out + (token + t) * stride + r
        tl.store(at, tl.sum(totals[t], 1), (r < n_rows) & (token + t < vectors.n_tokens))


@triton.jit
def product_kernel(
    vectors, matrices, outs, n_rows, strides, magic, FORMATS: tl.constexpr, SHAPES: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    """outs[m][t, r] = sum_k W_m[r, k] x[t, k] for the matrices m.

    Programs: tiles of rows of one matrix after another, by groups of TOKENS tokens. Each reads its
    rows once; the groups of a tile run side by side and share the L2 cache. Padding of x is zeros.
    """
    magic = tl.load(magic)
    tile = tl.program_id(0)
    for m in tl.static_range(len(FORMATS)):
        n_tiles = (n_rows[m] + SHAPES[m][0] - 1) // SHAPES[m][0]
        if (tile >= 0) & (tile < n_tiles):
            _tile(
                tile, vectors, matrices[m], outs[m], n_rows[m], strides[m], magic, FORMATS, SHAPES,
                TOKENS, m,
            )  # fmt: skip
        tile -= n_tiles


@triton.jit
def rows_kernel(
    planes, ids, out, first, count, n_rows, n_cols, factor, magic, ROWS: tl.constexpr,
    STEPS: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """out[t] = factor W[ids[t]], float (count, n_cols); NaN for ids outside. Without ids (None):
    rows from `first` on."""
    magic = tl.load(magic)
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = tl.load(ids + t, t < count, 0) if ids is not None else first + t
    row = row.to(tl.int64)
    exists = ((row >= 0) & (row < n_rows))[:, None, None]
    row = tl.minimum(tl.maximum(row, 0), n_rows - 1)
    step = tl.program_id(1) * STEPS + tl.arange(0, STEPS)
    n_steps = (n_cols + F.step - 1) // F.step
    here = (step < n_steps)[None, :]
    n: tl.constexpr = F.grain // F.lanes
    for i in tl.static_range(F.step // F.grain):
        if not F.is_float:
            scale, minimum = scale_and_minimum(planes, row, step, here, n_steps, i, F)
        for k in tl.static_range(n):
            value = codes(planes, row, step, here, n_steps, magic, i * n + k, F)
            if not F.is_float:
                value *= scale[:, :, None]
            if F.has_minimum:
                value -= minimum[:, :, None]
            value = tl.where(exists, value * factor, float("nan"))
            column = step * F.step + (i * F.grain + k * F.lanes)
            column = column[None, :, None] + tl.arange(0, F.lanes)[None, None, :]
            at = (t.to(tl.int64) * n_cols)[:, None, None] + column
            tl.store(out + at, value, (t < count)[:, None, None] & (column < n_cols))
