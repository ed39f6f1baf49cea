"""Random hyperplanes for signatures of one layer's queries and keys."""

import numpy as np
from numpy.typing import NDArray

from ...jit.arena import aligned
from ..attention.layout import TileLayout
from ..errors import OpsError
from ..reference.attention import rotate

F32 = NDArray[np.float32]
MIN_BITS, MAX_BITS = 4, 64


class SimHash:
    """Random hyperplanes through the origin: bit i of a signature is planes[i] . x > 0.

    planes float32 (bits, E), standard normal, from `seed`. Keys are signed as stored: where the
    layout rotates K the hyperplanes are rotated alike. Raises OpsError unless 4 <= bits <= 64.
    """

    def __init__(self, layout: TileLayout, bits: int, seed: int | tuple[int, ...]) -> None:
        if not MIN_BITS <= bits <= MAX_BITS:
            raise OpsError(f"SimHash: {bits} bits, expected {MIN_BITS} to {MAX_BITS}")
        self.layout, self.bits, self.words = layout, bits, -(-bits // 32)
        rng = np.random.default_rng(seed)
        self.planes = rng.standard_normal((bits, layout.head_dim)).astype(np.float32)
        rows = np.pad(self.planes, [(0, -bits % 16), (0, layout.padded - layout.head_dim)])
        stored = rotate(rows, layout.rotation) if layout.rotates_k else rows
        self.q_planes, self.k_planes = (_columns(x) for x in (rows, stored))


def _columns(rows: NDArray[np.floating]) -> F32:
    """(lanes, E) to float32 (E, lanes) on a cache line."""
    out: F32 = aligned(rows.size, np.float32)[: rows.size].reshape(rows.T.shape)
    out[:] = rows.T
    return out
