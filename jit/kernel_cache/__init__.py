"""Compiled kernels that outlive their process: folders, files, machine code. Imports no Numba."""

from .files import Counts, compiling, find, keep, on_compile

__all__ = ["Counts", "compiling", "find", "keep", "on_compile"]
