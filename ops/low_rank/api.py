"""y += B (A x), for what adapters add to matrices that read the same x. Imports no Numba."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...jit.arena import aligned
from ...jit.launch import Arguments, DefinedKernel, lazy_kernel
from ...jit.threads import max_threads
from ..arrays import F32
from ..errors import OpsError
from ..linear.activations import Activations
from ..linear.arguments import Buffers
from .arguments import Products
from .thin import CHUNK, ROWS, TILE_BYTES, LowRank


@lazy_kernel
def _narrow() -> DefinedKernel:
    from .kernels import narrow_kernel

    return narrow_kernel


@lazy_kernel
def _widen() -> DefinedKernel:
    from .kernels import widen_kernel

    return widen_kernel


class LowRankScratch:
    """Memory of `add_low_rank` for up to `max_rows` vectors, made on first use: most models have no
    adapters."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._parts: dict[tuple[int, int], F32] = {}
        self._buffers: dict[tuple[int, int], NDArray[np.uint8]] = {}
        self.products = Arguments(Products)

    def parts(self, n_tokens: int, n_panels: int, n_parts: int) -> F32:
        """`Products.parts`."""
        key = n_panels, n_parts
        if key not in self._parts:
            self._parts[key] = aligned((self._max_rows, *key, ROWS), np.float32)
        return self._parts[key][:n_tokens]

    def buffers(self, width: int) -> Buffers:
        """Memory of each thread: inputs of `width` floats, columns of a panel, sums. For as many
        as there may ever be: a recorded launch keeps its address."""
        n_bytes = TILE_BYTES + self._max_rows * 4 * (width + ROWS)
        key = max_threads(), n_bytes
        if key not in self._buffers:
            self._buffers[key] = aligned(key, np.uint8)
        return Buffers(int(self._buffers[key].ctypes.data), n_bytes)


def add_low_rank(
    act: Activations, products: Sequence[tuple[LowRank, F32]], scratch: LowRankScratch
) -> None:
    """out += B (A x) for the T vectors x of `act`, of each adapter and its out float32 (T, N).

    Everything is computed in float32, from numbers of 20 bits (`thin`). A vector has the same bits
    with any number of others and of threads. Reads each adapter's `n_bytes` once; the products by
    A run beside those by matrices of the same `act` (`Kernel.__call__`). Raises OpsError for shapes
    that do not fit, or too many vectors.
    """
    x, panels = act.x, list[int]()
    matrices = []
    for adapter, out in products:
        a, b = adapter.a.panels, adapter.b.panels
        if x.shape[1] != a.n_cols or out.shape != (len(x), b.n_rows) or len(x) > act.max_rows:
            raise OpsError(
                f"adding what adapters give: found x {x.shape} and out {out.shape}, expected x "
                f"(T, {a.n_cols}) and out (T, {b.n_rows})"
            )
        if out.dtype != np.float32 or not out.flags.c_contiguous:
            raise OpsError(
                f"adding what adapters give: found out of {out.dtype}, expected contiguous float32"
            )
        matrices.append((*b, len(panels), out.ctypes.data))
        panels += a.addresses
    parts = scratch.parts(len(x), len(panels), -(-x.shape[1] // CHUNK))
    given = scratch.products.fill(
        Products(x, np.array(panels, np.int64), parts, np.array(matrices, np.int64))
    )
    buffers = scratch.buffers(len(panels) * ROWS)
    _narrow(given, *buffers, group=act.group)
    _widen(given, *buffers)
