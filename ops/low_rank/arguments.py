"""What the kernels of adapters work on. Imports no Numba."""

from typing import NamedTuple

from ...jit.launch import arguments as arrays


class Products(NamedTuple):
    """Products of M adapters, whose A have P panels together, with the same T vectors."""

    x: arrays.F32_2D
    """(T, K)"""
    panels: arrays.I64_1D
    """(P,): addresses of the panels of each A."""
    parts: arrays.F32_4D
    """(T, P, K / 512 rounded up, 16): scratch, products of each 512 columns."""
    matrices: arrays.I64_2D
    """(M, 6): of each B its `Panels`, the panel of A with which its columns begin, and the address
    of float32 (T, N), to which it adds."""
