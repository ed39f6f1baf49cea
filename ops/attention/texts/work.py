"""How texts are cut into blocks of rows, and what the kernel reads and writes. Imports no Numba."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ....jit.launch.arguments import F32_2D, F32_3D, I64_2D
from ...errors import OpsError

ROWS = 96
"""Tokens of a block whose queries are multiplied at once: a multiple of every tile's height."""
KEYS = 128
"""Keys that are unpacked at once: with a block's rows they stay in the L2 cache."""
STRIP = 32
"""Floats of a line of unpacked keys or values: two cache lines."""
SCORES = KEYS + 16
"""Floats from row to row of scores: an odd number of cache lines apart, for their sets."""


class TextRows(NamedTuple):
    """The rows of all texts, one behind the other: float32 (N, H, E), k and v (N, J, E)."""

    q: F32_3D
    k: F32_3D
    v: F32_3D
    out: F32_3D
    blocks: I64_2D
    """Of each block: the first row of its text, the text's tokens, the block's first token and its
    last one + 1 within the text."""
    works: F32_2D
    """Of each thread: `work_floats`."""


def padded_of(head_dim: int) -> int:
    """Floats of a row, in whole strips."""
    return -(-head_dim // STRIP) * STRIP


def work_floats(head_dim: int) -> int:
    """Floats of a thread: queries and sums of a block, unpacked keys and values, scores; of each
    row its largest score and its sum of exponentials."""
    return (2 * ROWS + 2 * KEYS) * padded_of(head_dim) + ROWS * SCORES + 2 * ROWS


class Texts:
    """Texts of these numbers of tokens, one behind the other; `n_rows` tokens in all.

    Raises OpsError for a text without tokens.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        if not lengths or min(lengths) < 1:
            raise OpsError(f"cutting texts: found lengths {list(lengths)[:8]}, expected 1 or more")
        blocks, first = [], 0
        for n in lengths:
            blocks += [(first, n, start, min(start + ROWS, n)) for start in range(0, n, ROWS)]
            first += n
        self.n_rows, self.blocks = first, np.array(blocks, np.int64)
