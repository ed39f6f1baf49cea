"""Encodes the rows of a matrix: threads take some at a time, and encode them block by block.

A row is encoded by one thread in one way, so the bytes do not depend on how many there are.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ....jit.cached import jit
from ....jit.launch import DefinedKernel
from ....jit.launch.arguments import F32_1D, F32_2D, U8_2D
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address
from ....jit.simd import bits_i32, imax, load_f32, load_u32, set_i32, store
from ....ops.types import QUANT_TYPES
from . import blocks, superblocks
from .vectors import hmax_i32

_FLOATS = {"F16": blocks.round_f16, "BF16": blocks.round_bf16}
_SEARCHED = {
    **dict.fromkeys(blocks.FORMATS, blocks.searched_block),
    **dict.fromkeys(superblocks.SCALED, superblocks.scaled_encoder),
    **dict.fromkeys(superblocks.OFFSET, superblocks.offset_encoder),
}
WORK_BYTES = 1024
"""Scratch memory of a thread: more than any encoder takes (`superblocks` 704)."""


class Rows(NamedTuple):
    """Rows of weights (N, K), the importance of their columns (K,), where their bytes go."""

    x: F32_2D
    importance: F32_1D
    out: U8_2D
    works: U8_2D
    """WORK_BYTES of each thread."""


def can_round(type_name: str) -> bool:
    """Whether the largest weights of a block can fix the type's grid, and a search can, too."""
    return type_name in blocks.FORMATS and type_name != "IQ4_NL"


@cache
def make_encode_rows(type_name: str, search: bool) -> DefinedKernel:
    """The kernel that encodes rows as one type.

    search: whether to search for the grid of a type that `can_round`.
    """
    encode_row = _row_encoder(type_name, search)

    @kernel
    def encode_rows_kernel(share: Share, rows: Rows, at_once: int):
        """Encode all rows; a thread takes `at_once` at a time."""
        x, w, out = address(rows.x), address(rows.importance), address(rows.out)
        (n_rows, n_cols), row_bytes = rows.x.shape, rows.out.shape[1]
        work = address(rows.works) + share.part * WORK_BYTES
        first = take(share.ticket) * at_once
        while first < n_rows:
            for r in range(first, min(first + at_once, n_rows)):
                encode_row(x + 4 * r * n_cols, w, n_cols, work, out + r * row_bytes)
            first = take(share.ticket) * at_once

    return encode_rows_kernel


def _row_encoder(type_name: str, search: bool) -> Callable[..., Any]:
    """The jitted encoder of one row: encode(x, w, n_cols, work, out), all addresses but n_cols."""
    if type_name in _FLOATS:
        round_row = _FLOATS[type_name]

        @jit
        def _encode_floats(x, w, n_cols, work, out):
            round_row(x, n_cols, out)

        return _encode_floats
    block, n_bytes = QUANT_TYPES[type_name].block, QUANT_TYPES[type_name].n_bytes
    if type_name == "Q8_0":
        encode = blocks.round_q8_0
    elif can_round(type_name) and not search:
        encode = blocks.rounded_block(type_name)
    else:
        encode = _SEARCHED[type_name](type_name)

    @jit
    def _encode_row(x, w, n_cols, work, out):
        for i in range(n_cols // block):
            encode(x + 4 * block * i, w + 4 * block * i, work, out + n_bytes * i)

    return _encode_row


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
