"""Compiled kernels on disk, for later processes: folders, files, machine code. Imports no Numba."""

from .files import Counts, Damaged, compiling, find, keep, missing, on_compile, place

__all__ = ["Counts", "Damaged", "compiling", "find", "keep", "missing", "on_compile", "place"]
