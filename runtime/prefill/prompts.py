"""What prefill methods that read prompts in their own way have in common."""

from __future__ import annotations

from collections.abc import Hashable

from ...ops.arrays import F32
from ..attend import BoundAttend, LayerView
from ..attend.base import ChoiceObserver
from ..attend.reads import LayerReads
from ..methods import Progress

SINKS = 128
"""First tokens that every row reads: those of HashAttention; one block of keys."""


class PromptAttend(BoundAttend):
    """Reads prompts in a way of its own, and generated tokens by `inner`."""

    records_prompts = False

    def __init__(self, inner: BoundAttend, n_layers: int) -> None:
        self._inner, self.notices, self.reads = inner, inner.notices, inner.reads
        self.prompt_reads = inner.prompt_reads or [LayerReads(i) for i in range(n_layers)]
        self.records, self.unrecorded = inner.records, inner.unrecorded
        self.every_query = inner.every_query

    def expect(self, start: int, n_tokens: int, prompt: bool) -> Hashable | None:
        return self._inner.expect(start, n_tokens, prompt)

    def end(self, n_tokens: int) -> None:
        self._inner.end(n_tokens)

    @property
    def observer(self) -> ChoiceObserver | None:  # type: ignore[override]
        """The observer of choices for generated tokens."""
        return self._inner.observer

    @observer.setter
    def observer(self, observer: ChoiceObserver | None) -> None:
        self._inner.observer = observer

    def appended(self, layer: LayerView, start: int, n_tokens: int) -> None:
        self._inner.appended(layer, start, n_tokens)

    def build(
        self, layers: list[LayerView], n_tokens: int, progress: Progress | None = None
    ) -> None:
        self._inner.build(layers, n_tokens, progress)

    def rehearse(self, layers: list[LayerView]) -> None:
        self._inner.rehearse(layers)

    def __call__(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        self._inner(layer, q, start, out)
