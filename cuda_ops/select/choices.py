"""What attend methods ask of a GPU that has a context's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from ...ops.attention.layout import TileLayout
from .hash.resident import Networks, Signatures
from .lists import Lists
from .sketch import mean_keys
from .sketch.resident import Sketches

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Select:
    """The choices of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def signatures(
        self,
        networks: Mapping[int, Networks],
        n_heads: int,
        n_kv_heads: int,
        layout: TileLayout,
        n_ctx: int,
        seed: int,
    ) -> Signatures:
        """Choices by signatures, in the layers that have networks, among up to n_ctx tokens."""
        return Signatures(networks, n_heads, n_kv_heads, layout, n_ctx, seed, self._device)

    def sketches(
        self, n_heads: int, n_kv_heads: int, layout: TileLayout, n_ctx: int, k: int, seed: int
    ) -> Sketches:
        """Choices by sketches among up to n_ctx tokens, for up to k candidates of a query head."""
        return Sketches(n_heads, n_kv_heads, layout, n_ctx, k, seed, self._device)

    def mean_keys(
        self, places: torch.Tensor, layout: TileLayout, n_kv_heads: int, first: int, last: int
    ) -> NDArray[np.float32]:
        """`ops.select.mean_keys`."""
        mean: NDArray[np.float32] = mean_keys(places, layout, n_kv_heads, first, last).cpu().numpy()
        return mean

    def lists(self, index: torch.Tensor, counts: torch.Tensor) -> Lists:
        """Lists in this memory: int32 (J, room) and int32 (J,)."""
        return Lists(index, counts)
