"""What the kernel for coverage works on. Imports no Numba."""

from typing import NamedTuple

from kvarn.jit.launch import arguments as arrays
from kvarn.ops.select.choice import Candidates


class Query(NamedTuple):
    """One token's query heads (1, H, E), the lists that are shortened, and what is known of the
    tokens that they leave out."""

    q: arrays.F32_3D
    segments: arrays.I64_1D
    lists: arrays.U32_2D
    counts: arrays.I64_1D
    totals: arrays.F32_2D
    """[query head][greatest score, sum of exp(score - greatest)] of the range; [0][2]: unknown."""
    sample: arrays.U32_1D
    """Tokens of the range, ascending; empty where the totals are known."""


class Scratch(NamedTuple):
    """Of each thread."""

    rows: arrays.F32_3D
    works: arrays.U8_2D
    gathered_works: arrays.U8_2D
    listed: arrays.F32_3D
    """[query][room]: scores of the list's tokens."""
    sampled: arrays.F32_3D
    """[query][sample]: scores of those of the sample that are not listed."""
    left: arrays.U32_2D
    """[sample]: which these are."""
    weights: arrays.F32_2D
    """[room]"""
    entries: arrays.U64_2D
    entries_spare: arrays.U64_3D
    masses: arrays.F64_2D
    """[digit]: see `fewest`."""
    candidates: Candidates
    """Of which the marks and the histogram are used."""


class Wanted(NamedTuple):
    """The share of the softmax, and the most tokens that a query head may take for it."""

    share: float
    scale: float
    softcap: float
    k: int
    seed: int
    step: float
    """Tokens of the range that one of the sample stands for."""
