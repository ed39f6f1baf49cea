"""What the kernels for choices of several processes work on. Imports no Numba."""

from typing import NamedTuple

from ....jit.launch import arguments as arrays
from ..choice import Lists


class Signed(NamedTuple):
    """Signatures of one token's queries (J, G), addresses of a column's segments, and the entries
    (H, k) that are filled. taken: (J, 0)."""

    queries: arrays.U64_2D
    items: arrays.I64_1D
    taken: arrays.U64_2D
    entries: arrays.U64_2D


class Scores(NamedTuple):
    """Products of one token's query heads (H, S), and the entries (H, k) that are filled."""

    scores: arrays.F32_2D
    entries: arrays.U64_2D


class Limits(NamedTuple):
    """The entries (H, n) of all processes, and the limits (H,) that are set."""

    entries: arrays.U64_2D
    limits: arrays.U64_1D


class Entries(NamedTuple):
    """Entries (H, n), the limits of their keys (H,), and the lists that are filled."""

    entries: arrays.U64_2D
    limits: arrays.U64_1D
    lists: Lists


class ListMemory(NamedTuple):
    """Of each thread."""

    spare: arrays.U64_3D
    """(threads, 2, entries of a query head)"""
    histogram: arrays.I64_2D
    marks: arrays.U64_2D
    """A bit for each token."""
