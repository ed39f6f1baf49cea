"""All rows of a matrix: threads take some at a time, and encode them block by block.

A row is encoded by one thread in one way, so the bytes do not depend on how many there are.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from ....jit.cached import jit
from ....jit.launch import DefinedKernel
from ....jit.launch.arguments import F32_1D, F32_2D, U8_2D
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address
from ....jit.simd import bits_i32, imax, load_f32, load_u32, set_i32, store
from ....ops.types import QUANT_TYPES
from . import blocks, offset, rounding, scaled
from .vectors import hmax_i32

_ROUNDED = {
    "Q8_0": rounding.round_q8_0,
    "Q4_0": rounding.round_q4_0,
    "Q4_1": rounding.round_q4_1,
    "Q5_0": rounding.round_q5_0,
    "Q5_1": rounding.round_q5_1,
}
_FLOATS = {"F16": rounding.round_f16, "BF16": rounding.round_bf16}
_SEARCHED = {
    **dict.fromkeys(("Q4_0", "Q5_0", "IQ4_NL"), blocks.scaled_block),
    **dict.fromkeys(("Q4_1", "Q5_1"), blocks.offset_block),
    **dict.fromkeys(scaled.FORMATS, scaled.scaled_encoder),
    **dict.fromkeys(offset.FORMATS, offset.offset_encoder),
}
WORK_BYTES = 1024
"""Scratch memory of a thread: more than any encoder takes (`offset` 704)."""


class Rows(NamedTuple):
    """Rows of weights (N, K), the importance of their columns (K,), where their bytes go."""

    x: F32_2D
    importance: F32_1D
    out: U8_2D
    works: U8_2D
    """WORK_BYTES of each thread."""


def can_round(type_name: str) -> bool:
    """Whether the type can be rounded to the grid of its largest weights, without a search."""
    return type_name in _ROUNDED and type_name in _SEARCHED


@cache
def make_encode_rows(type_name: str, search: bool) -> DefinedKernel:
    """The kernel that encodes rows as one type.

    search: types that `can_round` search for their grid instead; others do what they always do.
    """
    if type_name in _FLOATS:
        return _make_round_rows(type_name)
    quant_type = QUANT_TYPES[type_name]
    block, n_bytes = quant_type.block, quant_type.n_bytes
    if type_name in _ROUNDED and not search:
        round_block = _ROUNDED[type_name]

        @jit
        def encode(x, w, work, out):
            round_block(x, work, out)

    else:
        encode = _SEARCHED[type_name](type_name)

    @kernel
    def encode_rows_kernel(share: Share, rows: Rows, at_once: int):
        """All rows; at_once: how many a thread takes."""
        x, importance, out = address(rows.x), address(rows.importance), address(rows.out)
        (n_rows, n_cols), row_bytes = rows.x.shape, rows.out.shape[1]
        work = address(rows.works) + share.part * WORK_BYTES
        first = take(share.ticket) * at_once
        while first < n_rows:
            for r in range(first, min(first + at_once, n_rows)):
                row, to = x + 4 * r * n_cols, out + r * row_bytes
                for i in range(n_cols // block):
                    weights = importance + 4 * block * i
                    encode(row + 4 * block * i, weights, work, to + n_bytes * i)
            first = take(share.ticket) * at_once

    return encode_rows_kernel


def _make_round_rows(type_name: str) -> DefinedKernel:
    round_row = _FLOATS[type_name]

    @kernel
    def round_rows_kernel(share: Share, rows: Rows, at_once: int):
        """All rows as floats of 16 bits; at_once: how many a thread takes."""
        x, out = address(rows.x), address(rows.out)
        (n_rows, n_cols), row_bytes = rows.x.shape, rows.out.shape[1]
        first = take(share.ticket) * at_once
        while first < n_rows:
            for r in range(first, min(first + at_once, n_rows)):
                round_row(x + 4 * r * n_cols, n_cols, out + r * row_bytes)
            first = take(share.ticket) * at_once

    return round_rows_kernel


@kernel
def largest_bits_kernel(share: Share, x: int, n: int, out: int):
    """Largest magnitude of n floats, as the bits of the float: those of infinities and NaNs are
    larger than all others. One int32 per thread at address `out`, which must hold zeros."""
    first, last = n * share.part // share.parts, n * (share.part + 1) // share.parts
    whole = first + (last - first) // 16 * 16
    mask = set_i32(0x7FFFFFFF)
    top = set_i32(0)
    for i in range(first, whole, 16):
        top = imax(top, bits_i32(load_f32(x, 4 * i)) & mask)
    most = np.int64(hmax_i32(top))
    for i in range(whole, last):
        most = max(most, np.int64(load_u32(x, 4 * i)) & 0x7FFFFFFF)
    store(out, 4 * share.part, np.int32(most))
