"""Kernels that are called by address, at once or as recorded sequences. Imports no Numba.

`define`, `atomics` and `views` have what kernels are written with, `launcher` what runs them.
"""

from .arguments import Arguments
from .graph import Cell, Graph, cell_of, record
from .lazy import DefinedKernel, Kernel, LazyKernel, lazy_kernel, lazy_kernels

__all__ = [
    "Arguments",
    "Cell",
    "DefinedKernel",
    "Graph",
    "Kernel",
    "LazyKernel",
    "cell_of",
    "lazy_kernel",
    "lazy_kernels",
    "record",
]
