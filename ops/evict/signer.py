"""The planes that sign the queries and keys of one layer."""

import numpy as np

from ...jit.arena import aligned
from ..arrays import F32
from ..attention.layout import TileLayout
from ..errors import OpsError
from ..reference.attention import rotate
from ..select.choice import ThreadScratch
from ..select.signatures.network import encoder_of, hyperplanes, simhash_network

MIN_BITS, MAX_BITS = 4, 64


class Signer(ThreadScratch):
    """SimHash of one layer; keys are signed as stored.

    planes: float32 (E, bits), drawn from `seed`. Where the layout rotates K, the hyperplanes for
    keys are rotated alike. centre: float32 (J, E), without which the keys of each KV head are
    stored; their signatures are those of the whole keys, P (k - c) + P c. queries, keys: for
    kernels, once `ready`; stride: see `StoredKeys`. Raises OpsError unless 4 <= bits <= 64.
    """

    def __init__(
        self,
        layout: TileLayout,
        bits: int,
        seed: tuple[int, ...],
        centre: F32 | None = None,
    ) -> None:
        if not MIN_BITS <= bits <= MAX_BITS:
            raise OpsError(f"Signer: {bits} bits, expected {MIN_BITS} to {MAX_BITS}")
        self.bits, self.words = bits, -(-bits // 32)
        self.planes = hyperplanes(layout.head_dim, bits, seed, "by plane")
        rows = np.pad(self.planes.T, [(0, 0), (0, layout.padded - layout.head_dim)])
        stored = rotate(rows, layout.rotation) if layout.rotates_k else rows
        self._queries = simhash_network(self.planes)
        self._keys = simhash_network(stored.T.astype(np.float32))
        self._weights, self.stride = self._keys.weights, 0
        if centre is not None:
            self.stride = len(self._keys.weights)
            self._weights = aligned((len(centre), self.stride), np.float32)
            self._weights[:] = self._keys.weights
            end = self.stride - self._keys.bits
            self._weights[:, end : end + bits] = centre @ self.planes
            self._weights = self._weights.ravel()

    def allocate(self, threads: int) -> None:
        self.queries = encoder_of(self._queries, threads)
        self.keys = encoder_of(self._keys, threads)._replace(weights=self._weights)
