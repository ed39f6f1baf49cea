"""Sketches of a context whose keys are in the GPU's memory: made, scanned, chosen from."""

from __future__ import annotations

import torch

from ....ops.attention.layout import SEGMENT, TileLayout
from ...memory import in_memory, telling
from ..lists import Lists
from .choice import SketchedKeys, SketchScratch, best_sketched
from .keys import KeyScratch, Rotation, sketch_keys

ROWS = 1024
"""Keys that are sketched in one launch."""


class Sketches:
    """The rotation, and memory that all layers share.

    bits and factors of a layer are its columns, uint8 (segments, KV heads * 1,024 * item bytes).
    """

    def __init__(
        self,
        n_heads: int,
        n_kv_heads: int,
        layout: TileLayout,
        n_ctx: int,
        k: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self._seed, self._n_kv_heads = seed, n_kv_heads
        self._rotation = Rotation.random(layout.head_dim, seed, device)
        self._keys = KeyScratch(n_kv_heads, layout, ROWS, device)
        self._choosing = SketchScratch(n_heads, n_kv_heads, n_ctx, k, layout, device)

    @property
    def passes(self) -> int:
        """How often a choice reads the sketches."""
        return len(self._choosing.n_listed) // self._n_kv_heads

    def index(
        self,
        centre: torch.Tensor,
        kv: torch.Tensor,
        bits: torch.Tensor,
        factors: torch.Tensor,
        start: int,
        n_tokens: int,
    ) -> None:
        """Write the sketches of the stored keys start .. start + n_tokens - 1 less the centre."""
        columns = self._columns(bits, factors)
        for done in range(0, n_tokens, ROWS):
            place = in_memory(start + done if done else start, kv.device)
            n = min(ROWS, n_tokens - done)
            with telling("sketching keys"):
                sketch_keys(self._rotation, centre, kv, *columns, place, n, scratch=self._keys)

    def choose(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        bits: torch.Tensor,
        factors: torch.Tensor,
        among: torch.Tensor,
        lists: Lists,
    ) -> None:
        """Lists for q (1, H, E); among int32 (first, last, stop, k, candidates)."""
        keys = SketchedKeys(kv, *self._columns(bits, factors), self._rotation)
        best_sketched(
            q, keys, among, lists.index, lists.counts, seed=self._seed, scratch=self._choosing
        )

    def _columns(
        self, bits: torch.Tensor, factors: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = len(bits), self._n_kv_heads, SEGMENT
        return bits.view(*shape, self._rotation.bits // 8), factors.view(torch.float16).view(shape)
