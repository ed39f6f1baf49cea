"""What the kernels of recurrent layers work on. Imports no Numba."""

from typing import NamedTuple

from ...jit.launch import arguments as arrays


class Convolution(NamedTuple):
    """Addresses of a convolution's float32 rows of n channels, and what follows it.

    x: (T, n), or (T, 3, n) where it is gated; weight: (width, n); bias: (n,), or 0 for none;
    state: (width - 1, n), of the rows before x; out: (T, n).
    """

    x: int
    weight: int
    bias: int
    state: int
    out: int
    n: int
    silu: int


class DeltaInputs(NamedTuple):
    """Addresses of what gates are made of.

    b, a: float32 (T, value heads); rates, bias: float32 (value heads,).
    """

    b: int
    a: int
    rates: int
    bias: int


class DeltaSteps(NamedTuple):
    """The steps of some tokens, in the form in which `delta_kernel` takes them."""

    keys: arrays.F32_4D
    """(key heads, T, 2, key_dim): q / (|q| sqrt(key_dim)), and k / |k|."""
    products: arrays.F32_2D
    """(T, key heads): product of these two."""
    decays: arrays.F32_2D
    """(T, value heads, padded to a multiple of 16): exp(g)."""
    betas: arrays.F32_2D
    """As `decays`: sigmoid(b)."""
