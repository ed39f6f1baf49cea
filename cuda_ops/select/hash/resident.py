"""Signatures of a context whose keys are in the GPU's memory: made, scanned, chosen from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ....ops.attention.layout import SEGMENT, TileLayout
from ....ops.select import Network
from ...memory import in_memory, telling
from ..lists import Lists
from .choice import SignatureScratch, nearest
from .encoders import Encoders, EncodeScratch, encode

ROWS = 1024
"""Keys that are encoded in one launch."""

Networks = tuple[Sequence[Network], Sequence[Network]]
"""Of one layer: for queries and for keys."""


class Signatures:
    """The encoders of the layers that choose, by their numbers, and memory that all of them share.

    items of a layer are its column, uint8 (segments, KV heads * 1,024 * bits / 8).
    """

    def __init__(
        self,
        networks: Mapping[int, Networks],
        n_heads: int,
        n_kv_heads: int,
        layout: TileLayout,
        n_ctx: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self._seed, self._heads = seed, (n_heads, n_kv_heads)
        self._encoders = {i: Encoders(*both, device) for i, both in networks.items()}
        first = next(iter(self._encoders.values()), None)
        if first is not None:
            self._encoding = EncodeScratch(n_heads, n_kv_heads, layout, ROWS, first)
            self._choosing = SignatureScratch(n_heads, n_kv_heads, n_ctx, device)
            shape = n_kv_heads, n_heads // n_kv_heads
            self._signs = torch.zeros(shape, dtype=first.word, device=device)

    def index(
        self, layer: int, kv: torch.Tensor, items: torch.Tensor, start: int, n_tokens: int
    ) -> None:
        """Write the signatures of the stored keys start .. start + n_tokens - 1."""
        words = self._words(layer, items)
        for done in range(0, n_tokens, ROWS):
            place = in_memory(start + done if done else start, kv.device)
            n = min(ROWS, n_tokens - done)
            self._encode(layer, None, kv, place, n, words)

    def choose(
        self,
        layer: int,
        q: torch.Tensor,
        start: int,
        kv: torch.Tensor,
        items: torch.Tensor,
        among: torch.Tensor,
        lists: Lists,
    ) -> None:
        """Lists for q (1, H, E), whose token is stored at `start` and is indexed, too."""
        words = self._words(layer, items)
        self._encode(layer, q, kv, in_memory(start, kv.device), 1, words)
        nearest(
            self._signs, words, self._encoders[layer].bits, among, lists.index, lists.counts,
            seed=self._seed, scratch=self._choosing,
        )  # fmt: skip

    def _encode(
        self,
        layer: int,
        q: torch.Tensor | None,
        kv: torch.Tensor,
        place: torch.Tensor,
        n_tokens: int,
        words: torch.Tensor,
    ) -> None:
        with telling("computing signatures"):
            encode(
                self._encoders[layer], q, kv, place, n_tokens, self._signs, words,
                scratch=self._encoding,
            )  # fmt: skip

    def _words(self, layer: int, items: torch.Tensor) -> torch.Tensor:
        word = self._encoders[layer].word
        return items.view(word).view(len(items), self._heads[1], SEGMENT)
