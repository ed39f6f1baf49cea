"""What the kernel works on. Imports no Numba."""

from typing import NamedTuple

from ....jit.launch import arguments as arrays


class Parts(NamedTuple):
    """Outputs and masses of each part, a layer's sinks or none, and what is filled."""

    outs: arrays.F32_4D
    """(P, T, H, E)"""
    masses: arrays.F32_4D
    """(P, T, H, 2): m, subtracted from scores, and the total of exp(score - m)."""
    sinks: arrays.F32_1D
    """(H,) or (0,)"""
    weights: arrays.F64_2D
    """(T H, P): scratch."""
    out: arrays.F32_3D
    """(T, H, E)"""
