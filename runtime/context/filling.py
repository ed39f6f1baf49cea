"""Contexts too long to read, for measurements: what was read is repeated with noise.

Token p of a filled context holds K and V of token p modulo n, the n tokens that were read, as
stored, plus noise of a quarter of the standard deviation that each channel has over those tokens.
Lengths of vectors and what is like what therefore stay near those of the model, no two tokens
are equal, and everything that reads the store does the work that it does in a context that was
read. What the model then says means nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...ops.attention.layout import SEGMENT
from ...system.errors import KvarnError
from ..memory import available_bytes, human_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .kv_cache import KVCache

    F32 = NDArray[np.float32]

NOISE = 0.25
"""Standard deviation of the noise, in those of a channel over the tokens read."""
SEED = 20_240_517


class FillError(KvarnError):
    """A context cannot be filled."""


class Filling:
    """Appends to a KV cache as if tokens were read.

    Costs 3.4 ms for a segment of a layer with 8 KV heads of 64 (one core of a Zen 3, q8_0).

    Holds K and V of the `n_read` tokens that are there in float32.
    """

    def __init__(self, cache: KVCache, n_read: int) -> None:
        from ...ops.reference.attention import read_kv

        if cache.slots:
            raise FillError("only a context that keeps all of its tokens can be filled")
        store = cache.store
        cache.begin(n_read, 0)
        self._cache, self._store, self._n_read = cache, store, n_read
        around = np.arange(n_read + SEGMENT) % n_read
        self._real: list[tuple[F32, F32]] = []
        for layer in range(store.n_layers):
            k, v = read_kv(store.segments(layer), store.layout, store.n_kv_heads, 0, n_read)
            self._real.append((k[around], v[around]))
        self._spread = [tuple(NOISE * x[:n_read].std(0) for x in kv) for kv in self._real]
        shape = store.n_kv_heads, store.layout.head_dim
        self._rng = np.random.default_rng(SEED)
        # Rows of noise from 1,024 places of these are drawn, not each number: that would cost most.
        self._noise = self._rng.standard_normal((2 * SEGMENT, *shape), np.float32)
        self._rows = np.empty((2, SEGMENT, *shape), np.float32)

    def check_room(self, n_tokens: int) -> None:
        """Raise `FillError` where memory will not hold the KV cache and indexes of `n_tokens`."""
        if self._store.saves:
            return  # the disk says so itself, before anything is written
        held = self._store.n_bytes
        needed = held // -(-self._n_read // SEGMENT) * -(-n_tokens // SEGMENT) - held
        if needed > (available := available_bytes()):
            raise FillError(
                f"filling a context of {n_tokens:,} tokens needs {human_bytes(needed)} more of KV "
                f"cache and index, and {human_bytes(available)} of memory are available: use a "
                "smaller depth or --kv-type, or --kv DIR"
            )

    def append(self, start: int, stop: int) -> None:
        """Store tokens start … stop - 1, at most 1,024."""
        self._cache.begin(start, stop - start)
        n, at = stop - start, start % self._n_read
        for layer, (real, spread) in enumerate(zip(self._real, self._spread)):
            for part, values, deviation in zip(self._rows, real, spread):
                shift = int(self._rng.integers(SEGMENT))
                np.multiply(self._noise[shift : shift + n], deviation, out=part[:n])
                part[:n] += values[at : at + n]
            self._store.append(layer, self._rows[0, :n], self._rows[1, :n], start)
