"""The interface of every KV store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ...ops.errors import KvarnError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...ops.attention.layout import TileLayout


class StoreError(KvarnError):
    """A KV store cannot hold what was asked of it."""


class KVStore(ABC):
    """K and V of all layers, in tiles of 16 tokens grouped in segments of 1,024.

    Tokens are written in order, `start` to `start + T - 1`; an earlier `start` overwrites,
    so that dropping tokens from the end needs no work here.
    """

    layout: TileLayout
    n_layers: int
    n_kv_heads: int

    @abstractmethod
    def reserve(self, n_tokens: int) -> None:
        """Make room for tokens 0 to n_tokens - 1; `StoreError` where there is none."""

    @abstractmethod
    def segments(self, layer: int) -> NDArray[np.int64]:
        """Base addresses of the layer's segments; valid until the next `reserve`."""

    @abstractmethod
    def append(
        self, layer: int, k: NDArray[np.float32], v: NDArray[np.float32], start: int
    ) -> None:
        """Store k, v float32[T, J, E] as tokens start … start + T - 1 of the layer."""

    @property
    @abstractmethod
    def n_bytes(self) -> int:
        """Bytes held now."""
