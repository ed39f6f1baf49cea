"""Compiled kernels on disk, for later processes: folders, files, machine code. Imports no Numba."""

from .events import Listener, compiling, on_compile, tell_not_kept
from .files import Counts, Damaged, Unlinkable, find, has, keep, place

__all__ = [
    "Counts",
    "Damaged",
    "Listener",
    "Unlinkable",
    "compiling",
    "find",
    "has",
    "keep",
    "on_compile",
    "place",
    "tell_not_kept",
]
