"""A trial: products of few tokens by integers, which no GPU has run yet.

    x = scale q,  q int16,  scale = the largest |x| of 32 neighbours / 32767

`dp2a` multiplies two int16 by two of a word's four bytes and adds: four weights take two
instructions, where as floats they take eight for their conversion alone. Sums of 32 products of 16
and 8 bits are below 2^28, so int32 holds them exactly. What is lost is what q is rounded by: a
product is off by at most 1 / 64,000 of the sum of |w| times the largest |x| of its 32.

Instructions a weight, compiled for sm_90 (Triton 3.7.1, tiles of 4 rows x 2 warps, one token):
Q8_0 1.5, Q4_0 1.7, Q4_1 1.8, Q4_K 2.1, Q5_0 2.4, Q5_1 2.5, Q5_K 2.9, Q6_K 3.0; nothing spills.
Triton 3.6 takes a tenth more: it exchanges scales, which have two dimensions, by shared memory.

`python -m lab.gpu.products` times it. Where it pays with its rounding, it can go into `cuda_ops`:
the order of codes into `planes` and `unpack`, whose `codes` has to read it for rows, and rounding
into `linear_many`, once a call, in memory that is allocated before graphs are recorded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kvarn.cuda_ops.linear import Weight
from kvarn.cuda_ops.linear.unpack import scale_and_minimum

TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
GROUPS = 16
"""Of 32 neighbours, that a program of `round_kernel` rounds."""
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Whether there is no `dp2a`."""
SMALLEST = tl.constexpr(2.0**-100)
"""Neighbours that are all below this are zeros: 32767 divided by less may be infinite."""
MAGIC = tl.constexpr(0x4B400000)
"""2^23 + 2^22 as a float: adding it rounds to an integer, which the low bits then are."""


class Integers(NamedTuple):
    """T vectors of K = 32 n numbers.

    words   int32 (T, 4, n, 4): of half h of each 32, word j of part 2 h + p has the int16 of
            columns 8 p + j and 8 p + 4 + j, which meet bytes 2 p and 2 p + 1 of the codes' words
    sums    int32 (T, 2, n): of the int16 of each half
    scales  float32 (T, n)
    """

    words: torch.Tensor
    sums: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def allocate(cls, n_tokens: int, n_cols: int, device: torch.device) -> Integers:
        """Memory for so many vectors."""
        n = n_cols // 32
        return cls(
            torch.empty((n_tokens, 4, n, 4), dtype=torch.int32, device=device),
            torch.empty((n_tokens, 2, n), dtype=torch.int32, device=device),
            torch.empty((n_tokens, n), device=device),
        )


@triton.jit
def round_kernel(x, integers, n_cols, GROUPS: tl.constexpr):
    """Vectors float32 (T, n_cols) as `Integers`. Programs: GROUPS times 32 numbers of a vector.

    One NaN or infinity makes the scale of its 32 NaN, and with it every product.
    """
    token, n = tl.program_id(1), n_cols // 32
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    here = group < n
    at = (token * n + group)[:, None] * 32 + tl.arange(0, 32)[None, :]
    values = tl.load(x + at, here[:, None], 0.0)
    most = tl.max(tl.abs(values), 1)
    factor = tl.where(most < SMALLEST, 0.0, 32767.0 / most)
    scale = most * (1.0 / 32767.0) + tl.sum(values * 0.0, 1)
    tl.store(integers.scales + token * n + group, scale, here)

    rounded = (values * factor[:, None] + 12582912.0).to(tl.int32, bitcast=True) - MAGIC
    at = (token * 2 + tl.arange(0, 2)[None, :]) * n + group[:, None]
    tl.store(integers.sums + at, tl.sum(tl.reshape(rounded, (GROUPS, 2, 16)), 2), here[:, None])

    shift = 16 * tl.arange(0, 2)[None, None, :, None]
    pairs = tl.reshape(rounded & 0xFFFF, (GROUPS, 4, 2, 4)) << shift
    part, word = tl.arange(0, 4)[None, :, None], tl.arange(0, 4)[None, None, :]
    at = ((token * 4 + part) * n + group[:, None, None]) * 4 + word
    tl.store(integers.words + at, tl.sum(pairs, 2), here[:, None, None])


@triton.jit
def _dot(codes, pairs, total, p: tl.constexpr):
    """total + the products of a word's bytes 2 p and 2 p + 1 with the two numbers of a pair."""
    if INTERPRETED:
        low, high = (codes >> 16 * p) & 255, (codes >> (16 * p + 8)) & 255
        total += low.to(tl.int32) * (pairs << 16 >> 16) + high.to(tl.int32) * (pairs >> 16)
    elif p == 0:
        total = tl.inline_asm_elementwise(
            "dp2a.lo.s32.u32 $0, $1, $2, $3;", "=r,r,r,r", [pairs, codes, total],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        total = tl.inline_asm_elementwise(
            "dp2a.hi.s32.u32 $0, $1, $2, $3;", "=r,r,r,r", [pairs, codes, total],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return total


@triton.jit
def _fields(
    plane, row, step, n_cols, half: tl.constexpr, WIDTH: tl.constexpr, to: tl.constexpr
):  # fmt: skip
    """The fields of half of 32 columns, from bit `to` of each byte on; the other bits are zeros."""
    word, of_row = tl.arange(0, row.shape[0]) % 4, row * (n_cols * WIDTH // 128 * 4)
    if WIDTH == 8:
        words = tl.load(plane + of_row + (8 * step + 4 * half + word))
    else:
        shared: tl.constexpr = 4 // WIDTH  # times 32 columns in 16 bytes
        words = tl.load(plane + of_row + (4 * (step // shared) + word))
        if shared > 1:
            words = words >> (2 * WIDTH * (step % shared)).to(tl.uint32)
        at: tl.constexpr = WIDTH * half
        if at > to:
            words = words >> (at - to)
        if at < to:
            words = words << (to - at)
        words = words & ((((1 << WIDTH) - 1) << to) * 0x01010101)
    return words


@triton.jit
def _code_bytes(planes, row, step, n_cols, half: tl.constexpr, F: tl.constexpr):
    """Sixteen codes, half of 32 columns: uint32, byte b of word j is code 4 b + j.

    Row int64 and step of 32 columns for each word, four in turn; n_cols of a row with its padding.
    """
    words = _fields(planes.codes, row, step, n_cols, half, F.widths[0], 0)
    if F.high:
        words |= _fields(planes.more, row, step, n_cols, half, F.high, F.widths[0])
    return words


@triton.jit
def _add_steps(
    totals, integers, planes, n_rows, first, token, n_tokens, n, padded, STEPS: tl.constexpr,
    F: tl.constexpr,
):  # fmt: skip
    """totals, (ROWS, STEPS) for each token from `token` on, plus products of 32 columns a step.

    What is loaded of the matrix has one dimension: of more, Triton chooses an order that may not be
    that of what is computed, and exchanges all by shared memory.
    """
    ROWS: tl.constexpr = totals[0].shape[0]
    tile = tl.program_id(0) * ROWS
    row = tl.minimum(tile + tl.arange(0, ROWS), n_rows - 1).to(tl.int64)
    step = tl.minimum(first + tl.arange(0, STEPS), n - 1)
    here = tl.full((1, STEPS), 1, tl.int1)
    of_words = tl.arange(0, ROWS * STEPS * 4)
    row_of_words = tl.minimum(tile + of_words // (STEPS * 4), n_rows - 1).to(tl.int64)
    step_of_words = tl.minimum(first + of_words // 4 % STEPS, n - 1)
    word = 4 * step[:, None] + tl.arange(0, 4)[None, :]
    n_halves: tl.constexpr = F.grain // 16
    new = ()
    for t in tl.static_range(len(totals)):
        of = tl.minimum(token + t, n_tokens - 1) * n
        total = tl.zeros((ROWS, STEPS), tl.float32)
        for i in tl.static_range(32 // F.grain):
            dots = tl.zeros((ROWS, STEPS, 4), tl.int32)
            of_x = tl.zeros((1, STEPS), tl.int32)
            for h in tl.static_range(n_halves):
                half = i * n_halves + h
                codes = _code_bytes(
                    planes, row_of_words, step_of_words, padded, i * n_halves + h, F
                )
                codes = tl.reshape(codes, (ROWS, STEPS, 4))
                for p in tl.static_range(2):
                    at = 4 * (4 * of + (2 * half + p) * n) + word
                    dots = _dot(codes, tl.load(integers.words + at)[None], dots, p)
                of_x += tl.load(integers.sums + 2 * of + half * n + step)[None, :]
            scale, minimum = scale_and_minimum(planes, row, step, here, padded // 32, i, F)
            total += scale * (tl.sum(dots, 2) - F.centre * of_x).to(tl.float32)
            if F.has_minimum:
                total -= minimum * of_x.to(tl.float32)
        inside = first + tl.arange(0, STEPS) < n
        factor = tl.load(integers.scales + of + step, inside, 0.0)
        new = new + (totals[t] + factor[None, :] * total,)
    return new


@triton.jit
def integer_kernel(
    integers, planes, out, n_rows, n_cols, padded, n_tokens, ROWS: tl.constexpr,
    STEPS: tl.constexpr, TOKENS: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """out[t, r] = sum_k W[r, k] x[t, k]. Programs: tiles of rows, by groups of TOKENS tokens.

    padded: columns of the planes. F: the type as if it were read by 32 columns.
    """
    token = tl.program_id(1) * TOKENS
    totals = ()
    for _ in tl.static_range(TOKENS):
        totals = totals + (tl.zeros((ROWS, STEPS), tl.float32),)
    n = n_cols // 32
    for first in range(0, n, STEPS):
        totals = _add_steps(
            totals, integers, planes, n_rows, first, token, n_tokens, n, padded, STEPS, F
        )
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    for t in tl.static_range(TOKENS):
        at = out + (token + t) * n_rows + r
        tl.store(at, tl.sum(totals[t], 1), (r < n_rows) & (token + t < n_tokens))


def in_order(weight: Weight) -> Weight:
    """The matrix with its codes in the order that `integer_kernel` reads, and nothing else.

    A plane whose fields have `width` bits holds in 16 bytes 8 / width times 16 codes. Of sixteen
    number s, code 4 b + j is in byte b of word j, from bit width s on.
    """
    f, planes = weight.format, weight.planes
    codes = _in_order(planes.codes, f.widths[0])
    more = _in_order(planes.more, f.high) if f.high else codes
    return replace(weight, planes=planes._replace(codes=codes, more=more))


def _in_order(plane: torch.Tensor, width: int) -> torch.Tensor:
    """Of words whose field f of word j is code 4 f + j."""
    shifts = torch.arange(0, 32, width, dtype=torch.int32, device=plane.device)
    fields = (plane.view(torch.int32)[:, :, None] >> shifts[:, None]) & ((1 << width) - 1)
    parts = fields.view(*plane.shape[:2], 8 // width, 4, 4)
    shifts = shifts.view(4, 8 // width).T[:, :, None]
    return (parts << shifts).sum((2, 3), dtype=torch.int32).view(torch.uint32)


def round_to_integers(x: torch.Tensor, out: Integers) -> None:
    """The vectors x float32 (T, 32 n) as integers."""
    n_tokens, n_cols = x.shape
    grid = triton.cdiv(n_cols, 32 * GROUPS), n_tokens
    round_kernel[grid](x, out, n_cols, GROUPS=GROUPS, num_warps=4)


def multiply(weight: Weight, integers: Integers, out: torch.Tensor, tile: tuple[int, int]) -> None:
    """out float32 (T, N) = x W^T for a matrix `in_order`, by a tile of so many rows and warps."""
    n_tokens, f, (rows, warps) = len(out), weight.format, tile
    tokens, padded = min(n_tokens, 4), triton.cdiv(weight.n_cols, f.step) * f.step
    integer_kernel[(triton.cdiv(weight.n_rows, rows), triton.cdiv(n_tokens, tokens))](
        integers, weight.planes, out, weight.n_rows, weight.n_cols, padded, n_tokens, ROWS=rows,
        STEPS=32 * warps, TOKENS=tokens, F=replace(f, step=32), num_warps=warps,
    )  # fmt: skip
