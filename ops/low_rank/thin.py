"""Thin matrices of adapters in memory: numbers of 20 bits, a scale for each row.

    w = scale * (16 * high + low),   |16 * high + low| < 2^19

A number is off by at most 1e-6 of its row's largest one. A product sums codes in float32, which has
them exactly, and is scaled once. Float16 would be off by 500 times as much, and float32 takes 1.6
times the bytes, which is what a token waits for. Sixteen rows are a panel, one row per lane:

    [16 rows] f32  scales | for each two columns:  [16] i16  high, the first column
                                                   [16] i16  high, the second
                                                   [16] u8   low, the first + 16 * the second

Rows and columns are filled up with zeros. Imports no Numba.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...jit.arena import aligned
from ..arrays import F32

ROWS = 16
"""Rows of a panel."""
HEAD = 64
"""Bytes of a panel's scales."""
PAIR = 80
"""Bytes of two columns of a panel."""
CHUNK = 512
"""Columns that a thread takes at once."""
TILE_BYTES = CHUNK * 4 * ROWS
"""Bytes of these columns of a panel as float32."""
_LARGEST = 2**19 - 1
_CODES = np.dtype([("high", "<i2", (2, ROWS)), ("low", "u1", (ROWS,))])


class Panels(NamedTuple):
    """A thin matrix for kernels: address of its first panel, bytes of each, rows, columns."""

    data: int
    panel_bytes: int
    n_rows: int
    n_cols: int

    @property
    def addresses(self) -> range:
        """Of each panel."""
        n_panels = -(-self.n_rows // ROWS)
        return range(self.data, self.data + n_panels * self.panel_bytes, self.panel_bytes)


def _panels(n_rows: int, n_cols: int) -> tuple[int, np.dtype[np.void]]:
    """How many panels a matrix has, and the layout of each."""
    pairs = ("pairs", _CODES, (-(-n_cols // 2),))
    return -(-n_rows // ROWS), np.dtype([("scale", "<f4", (ROWS,)), pairs])


def thin_bytes(n_rows: int, n_cols: int) -> int:
    """Bytes of a thin matrix in memory."""
    n_panels, layout = _panels(n_rows, n_cols)
    return n_panels * layout.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class ThinMatrix:
    """N rows of K numbers, as the kernels read them."""

    data: NDArray[np.uint8] = field(repr=False)
    panels: Panels

    @staticmethod
    def prepare(values: F32) -> ThinMatrix:
        """Round float32 (N, K), finite numbers."""
        n_rows, n_cols = values.shape
        n_panels, layout = _panels(n_rows, n_cols)
        scales = np.zeros(n_panels * ROWS, np.float32)
        scales[:n_rows] = np.abs(values).max(axis=1, initial=0) / np.float32(_LARGEST)
        codes = np.zeros((n_panels * ROWS, -(-n_cols // 2) * 2), np.int32)
        divisors = np.where(scales > 0, scales, 1)[:n_rows, np.newaxis]
        codes[:n_rows, :n_cols] = np.rint(values / divisors)
        by_pairs = codes.reshape(n_panels, ROWS, -1, 2).transpose(0, 2, 3, 1)
        data: NDArray[np.uint8] = aligned(n_panels * layout.itemsize, np.uint8)
        panels = data.view(layout)
        panels["scale"] = scales.reshape(n_panels, ROWS)
        low = by_pairs & 15
        panels["pairs"]["high"] = by_pairs >> 4
        panels["pairs"]["low"] = low[:, :, 0] | low[:, :, 1] << 4
        return ThinMatrix(data, Panels(data.ctypes.data, layout.itemsize, n_rows, n_cols))


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """What adapters add to one matrix of N rows and K columns: B A."""

    a: ThinMatrix
    b: ThinMatrix

    @staticmethod
    def prepare(a: F32, b: F32) -> LowRank:
        """Round a float32 (R, K) and b float32 (N, R), finite numbers."""
        return LowRank(ThinMatrix.prepare(a), ThinMatrix.prepare(b))

    @property
    def n_bytes(self) -> int:
        """Bytes that a product reads."""
        return self.a.data.nbytes + self.b.data.nbytes
