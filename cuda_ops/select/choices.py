"""What attend methods ask of a GPU that has a context's keys."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...ops.attention.layout import TileLayout
from .hash.resident import Networks, Signatures
from .lists import Lists


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

    def lists(self, index: torch.Tensor, counts: torch.Tensor) -> Lists:
        """Lists in this memory: int32 (J, room) and int32 (J,)."""
        return Lists(index, counts)
