"""All rows of a matrix: threads take some at a time, and encode them block by block.

A row is encoded by one thread in one way, so the bytes do not depend on how many there are.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ....ops.cache import jit
from ....ops.simd import bits_i32, imax, load_f32, load_u32, set_i32, store
from ....ops.steps import Step
from ....ops.steps.define import step
from ....ops.steps.words import take
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
"""What each thread works in: more than any encoder takes (`offset` 704)."""


def can_round(type_name: str) -> bool:
    """Whether the type can be rounded to the grid of its largest weights, without a search."""
    return type_name in _ROUNDED and type_name in _SEARCHED


@cache
def encode_rows(type_name: str, search: bool) -> Step:
    """The kernel of one type: addresses of x float32[N, K], of w float32[K] and of out; N, K, bytes
    of a row of out; rows that a thread takes at a time; address of WORK_BYTES for each thread.

    search: types that `can_round` search for their grid instead; others do what they always do.
    """
    if type_name in _FLOATS:
        return _encode_floats(type_name)
    quant_type = QUANT_TYPES[type_name]
    block, n_bytes = quant_type.block, quant_type.n_bytes
    if type_name in _ROUNDED and not search:
        round_block = _ROUNDED[type_name]

        @jit
        def encode(x, w, work, out):
            round_block(x, work, out)

    else:
        encode = _SEARCHED[type_name](type_name)

    @step("iiiiiiii")
    def _encode_rows(part, parts, ticket, x, w, out, n_rows, n_cols, row_bytes, some, work):
        first, here = take(ticket) * some, work + part * WORK_BYTES
        while first < n_rows:
            for r in range(first, min(first + some, n_rows)):
                row, to = x + 4 * r * n_cols, out + r * row_bytes
                for i in range(n_cols // block):
                    encode(row + 4 * block * i, w + 4 * block * i, here, to + n_bytes * i)
            first = take(ticket) * some

    return _encode_rows


def _encode_floats(type_name: str) -> Step:
    round_row = _FLOATS[type_name]

    @step("iiiiiiii")
    def _round_rows(part, parts, ticket, x, w, out, n_rows, n_cols, row_bytes, some, work):
        first = take(ticket) * some
        while first < n_rows:
            for r in range(first, min(first + some, n_rows)):
                round_row(x + 4 * r * n_cols, n_cols, out + r * row_bytes)
            first = take(ticket) * some

    return _round_rows


@step("iii")
def largest_bits(part, parts, ticket, x, n, out):
    """Largest magnitude of n floats, as the bits of the float: those of infinities and of what is
    no number are larger than all others. One int32 per thread at `out`, which must hold zeros."""
    first, last = n * part // parts, n * (part + 1) // parts
    whole = first + (last - first) // 16 * 16
    mask = set_i32(0x7FFFFFFF)
    top = set_i32(0)
    for i in range(first, whole, 16):
        top = imax(top, bits_i32(load_f32(x, 4 * i)) & mask)
    most = np.int64(hmax_i32(top))
    for i in range(whole, last):
        most = max(most, np.int64(load_u32(x, 4 * i)) & 0x7FFFFFFF)
    store(out, 4 * part, np.int32(most))
