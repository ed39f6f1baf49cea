"""Attend methods side by side: each layer's output is exact, and what others would give is noted.

So every method meets the same queries, and what a layer gets wrong does not change the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from kvarn.ops.arrays import F32
from kvarn.ops.reference.attention import read_kv
from kvarn.runtime.attend import Attend, BoundAttend, LayerView, TopK
from kvarn.runtime.attend.full import FullAttention

if TYPE_CHECKING:
    from kvarn.runtime.loading.model_info import ModelInfo
    from kvarn.runtime.methods import Progress
    from kvarn.runtime.store import KVStore

    Note = Callable[["Step"], None]


@dataclass(frozen=True)
class Step:
    """One token in one layer: q (H, E), exact and the method's output (H, E), all stored K and V
    (n, J, E), and how many tokens the method read in each KV head on average."""

    layer: LayerView
    q: F32
    exact: F32
    found: F32
    keys: F32
    values: F32
    read: float

    @property
    def error(self) -> float:
        """Mean over the heads of ‖o - o_full‖ / ‖o_full‖."""
        return relative_error(self.found, self.exact)


def relative_error(found: F32, exact: F32) -> float:
    """Mean over the rows of ‖found - exact‖ / ‖exact‖."""
    off = np.linalg.norm(found - exact, axis=1)
    return float(np.mean(off / np.linalg.norm(exact, axis=1)))


@dataclass(frozen=True)
class Shadow(Attend):
    """`full`, beside which `method` runs; `note` hears of each step while `watching` holds True."""

    name: ClassVar[str] = "full"
    summary: ClassVar[str] = "every token, beside a method that is measured"

    method: Attend
    note: Note
    watching: list[bool]

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> BoundShadow:
        return BoundShadow(self, self.method.open(model, store, n_ctx))


class BoundShadow(BoundAttend):
    """Full attention over one context, and the method beside it."""

    chooses: ClassVar[bool] = True

    def __init__(self, shadow: Shadow, inner: BoundAttend) -> None:
        self._shadow, self._inner, self._full = shadow, inner, FullAttention()
        self.notices, self.reads = inner.notices, inner.reads
        self._kept: dict[int, tuple[F32, F32]] = {}

    def appended(self, layer: LayerView, start: int, n_tokens: int) -> None:
        self._inner.appended(layer, start, n_tokens)

    def build(
        self, layers: list[LayerView], n_tokens: int, progress: Progress | None = None
    ) -> None:
        self._inner.build(layers, n_tokens, progress)

    def attend_prompt(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        self._full.attend_prompt(layer, q, start, out)

    def __call__(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        self._full(layer, q, start, out)
        reads = self.reads[layer.index]
        if not self._shadow.watching[0] or layer.config.window is not None:
            return
        before, found = reads.attended_tokens, np.empty_like(out)
        self._inner(layer, q, start, found)
        n_read = (reads.attended_tokens - before) / layer.store.n_kv_heads
        if n_read:
            keys, values = self._stored(layer, start + 1)
            step = Step(layer, q[0], out[0].copy(), found[0], keys, values, n_read)
            self._shadow.note(step)

    def _stored(self, layer: LayerView, stop: int) -> tuple[F32, F32]:
        """K and V of all stored tokens; those of earlier steps are remembered up to the last 512,
        which a new question may have replaced."""
        store = layer.store
        held = self._kept.get(layer.index)
        first = 0 if held is None else max(0, min(len(held[0]), stop) - 512)
        segments = store.segments(layer.index)
        newest = read_kv(segments, store.layout, store.n_kv_heads, first, stop)
        if held is not None:
            keys, values = (np.concatenate([old[:first], new]) for old, new in zip(held, newest))
        else:
            keys, values = newest
        self._kept[layer.index] = keys, values
        return keys, values


@dataclass(frozen=True)
class Matched(TopK):
    """`topk` with a number of tokens of its own for each layer that chooses."""

    by_layer: Sequence[float] = ()

    def shares(self, n_layers: int) -> list[float]:
        return list(self.by_layer)
