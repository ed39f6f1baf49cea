"""Kernels that are called by address, at once or from a recorded graph. Imports no Numba.

A call of a kernel is a launch. It is packed into a record (`record`), which the launcher runs in
all threads. `define`, `atomics` and `views`, which import Numba, are what kernels are written with.
"""

from .arguments import Arguments
from .graph import Cell, Graph, Kernel, cell_of, record, recording
from .lazy import DefinedKernel, LazyKernel, lazy_kernel, lazy_kernels

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
    "recording",
]
