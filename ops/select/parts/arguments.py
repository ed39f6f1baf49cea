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


class Searched(NamedTuple):
    """One token's query heads (1, H, E), the stored keys, and the entries (H, k) that are filled.
    taken: (J, 0)."""

    q: arrays.F32_3D
    segments: arrays.I64_1D
    taken: arrays.U64_2D
    entries: arrays.U64_2D


class Limits(NamedTuple):
    """The entries of all processes, and what is set."""

    entries: arrays.U64_1D
    """(H, n) of each process, one after the other."""
    cuts: arrays.I64_1D
    """(P + 1,): process p named n = cuts[p + 1] - cuts[p] of each query head."""
    limits: arrays.U64_1D
    """(H,)"""
    within: arrays.I64_2D
    """(P, H): how many of them are up to the limit."""


class LimitMemory(NamedTuple):
    """Of each thread."""

    spare: arrays.U64_3D
    """(threads, 3, entries of a query head)"""
    histogram: arrays.I64_2D


class Entries(NamedTuple):
    """Entries (H, n), the limits of their keys (H,), and the lists that are filled."""

    entries: arrays.U64_2D
    limits: arrays.U64_1D
    lists: Lists


class ListMemory(NamedTuple):
    """Of each thread."""

    marks: arrays.U64_2D
    """A bit for each token."""


class Surrounded(NamedTuple):
    """Lists of tokens, and those that are filled of them and of what stands around."""

    chosen: Lists
    lists: Lists
