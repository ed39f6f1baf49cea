"""The kernels of short convolutions along the tokens, each channel by itself.

    y[t] = sum over i < width of weight[i] x[t - width + 1 + i]

Rows before the first are the state's. Products are added from the oldest row to the newest, so bits
do not depend on where a text is cut.
"""

from ...jit.cached import jit
from ...jit.launch import DefinedKernel
from ...jit.launch.define import Share, bounds, kernel
from ...jit.simd import fma, load_f32, load_tail, set_f32, store, store_tail
from ..pointwise.elementwise import silu
from .arguments import Convolution

STRIP = 512
"""Channels that a thread takes at a time: `width` rows of them stay in the first cache."""


@jit
def load_some(address, at, m):
    """The first m of 16 floats."""
    return load_f32(address, at) if m == 16 else load_tail(address, at, m)


@jit
def store_some(address, at, m, x):
    """Store the first m of 16 floats."""
    if m == 16:
        store(address, at, x)
    else:
        store_tail(address, at, m, x)


def make_convolution(width: int, gated: bool) -> DefinedKernel:
    """The kernel for `width` rows.

    gated: rows of x are b, c and x, n channels each; y = c * convolution of (b * x).
    """
    parts = 3 if gated else 1

    @jit
    def _input(rows, t, at, m):
        """Row t of what is multiplied by the weights; rows from -(width - 1) on are the state's."""
        if t < 0:
            return load_some(rows.state + 4 * rows.n * (t + width - 1), at, m)
        row = rows.x + 4 * parts * rows.n * t
        if gated:
            return load_some(row, at, m) * load_some(row + 8 * rows.n, at, m)
        return load_some(row, at, m)

    @jit
    def _output(rows, t, i, m):
        """y[t] of channels i .. i + m - 1."""
        at, y = 4 * i, set_f32(0.0)
        if rows.bias:
            y = load_some(rows.bias, at, m)
        for k in range(width):
            weight = load_some(rows.weight + 4 * rows.n * k, at, m)
            y = fma(weight, _input(rows, t - width + 1 + k, at, m), y)
        if gated:
            y = y * load_some(rows.x + 4 * rows.n * (3 * t + 1), at, m)
        elif rows.silu:
            y = silu(y)
        store_some(rows.out + 4 * rows.n * t, at, m, y)

    @jit
    def _keep(rows, n_tokens, i, m):
        """The state after these tokens, from the oldest row on, as rows move towards it."""
        for j in range(width - 1):
            x = _input(rows, n_tokens - width + 1 + j, 4 * i, m)
            store_some(rows.state + 4 * rows.n * j, 4 * i, m, x)

    @kernel
    def convolution_kernel(share: Share, rows: Convolution, n_tokens: int):
        """A thread has a part of the channels. Reads and writes each row once."""
        first, stop = bounds(share, (rows.n + 15) // 16)
        for begin in range(16 * first, 16 * stop, STRIP):
            end = min(begin + STRIP, 16 * stop, rows.n)
            whole = end // 16 * 16
            for t in range(n_tokens):
                for i in range(begin, whole, 16):
                    _output(rows, t, i, 16)
                if whole < end:
                    _output(rows, t, whole, end - whole)
            for i in range(begin, end, 16):
                _keep(rows, n_tokens, i, min(16, end - i))

    return convolution_kernel
