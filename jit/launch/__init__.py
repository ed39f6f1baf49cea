"""Calls kernels by address, at once or from a recorded graph. Imports no Numba.

A call of a kernel is a launch. It becomes a record (`record`), which the launcher runs in all
threads. `define`, `atomics` and `views`, which import Numba, serve to write kernels.
"""

from .arguments import Arguments as Arguments
from .graph import Cell as Cell
from .graph import Graph as Graph
from .graph import Kernel as Kernel
from .graph import cell_of as cell_of
from .graph import record as record
from .graph import recording as recording
from .lazy import DefinedKernel as DefinedKernel
from .lazy import LazyKernel as LazyKernel
from .lazy import collecting as collecting
from .lazy import lazy_kernel as lazy_kernel
from .lazy import lazy_kernels as lazy_kernels
