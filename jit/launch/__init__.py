"""Kernels that are called by address, at once or as recorded sequences. Imports no Numba.

`define`, `words` and `lent` have what kernels are written with, `launch` what runs them.
"""

from .arguments import Table
from .graph import Cell, Graph, KeptStep, Step, cell_of, kernel, kernels, record

__all__ = ["Cell", "Graph", "KeptStep", "Step", "Table", "cell_of", "kernel", "kernels", "record"]
