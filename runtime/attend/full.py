"""attend `full`: exact attention over every stored token, or over the layer's window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ...ops.arrays import F32
from ..loading.model_info import ModelInfo
from ..store import KVStore
from .base import Attend, BoundAttend, LayerView


@dataclass(frozen=True)
class Full(Attend):
    """softmax(scale · q Kᵀ) V over all tokens that the causal mask and the window allow."""

    name: ClassVar[str] = "full"
    summary: ClassVar[str] = "every token"

    @property
    def needs_all_tokens(self) -> bool:
        return False

    @property
    def host_only(self) -> str:
        return ""

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> FullAttention:
        return FullAttention()


class FullAttention(BoundAttend):
    """Reads all that the layer's store holds."""

    records = True

    def __call__(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        self._attend(layer.device.attention, layer, q, start, out)

    def attend_prompt(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        self._attend(layer.device.attention_rows, layer, q, start, out)

    def _attend(
        self, attention: Callable[..., None], layer: LayerView, q: F32, start: int, out: F32
    ) -> None:
        attention(
            q,
            layer.store.segments(layer.index),
            start,
            out,
            softmax=layer.softmax,
            window=layer.config.window,
            scratch=layer.scratch,
        )
