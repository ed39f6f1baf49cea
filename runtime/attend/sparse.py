"""Attention that reads only chosen tokens: what all methods share beside their index.

Sinks and window are always read. Of the tokens between them each query head nominates its k best,
and the heads that share a KV head attend to all that any of them chose. Prefill, layers with a
sliding window, and contexts of which nearly all would be read use `full`, with its very bits.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..methods import option
from .ahead import ReadAhead
from .base import Attend, AttendError, BoundAttend, LayerView
from .budget import SCHEDULES, UNITS, Budget, layer_weights
from .full import FullAttention
from .probe import MassProbe
from .reads import LayerReads

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ...models.config import ModelConfig
    from ...ops.select import Range
    from ..model_info import ModelInfo
    from ..store import Column, KVStore

    F32 = NDArray[np.float32]

SEED = 20_240_517
"""Of every choice at random: projections, and the order among equal scores."""


@dataclass(frozen=True)
class Sparse(Attend, ABC):
    """Options common to all sparse methods.

    budget: tokens read per KV head beside sinks and window, "1%" of those stored or a number; its
    query heads share it, or with budget_unit "query-head" each may choose as many. probe: measure
    the softmax mass covered every so many steps (0: never; it reads all keys).
    """

    selects: ClassVar[bool] = True

    budget: str | int = option(
        "1%", "tokens read per KV head: a share of those stored such as 1%, or a number"
    )
    sink: int = option(0, "always read the first N tokens", int)
    window: int = option(0, "always read the last N tokens", int)
    budget_unit: str = option(
        "kv-head",
        "whose budget it is: shared by the query heads of a KV head, or each one's",
        choices=UNITS,
    )
    budget_schedule: str = option(
        "uniform",
        "the same in each layer, or rising from first to last at equal total",
        choices=SCHEDULES,
    )
    probe: int = option(0, "every N steps measure the softmax mass that was read", int)

    def __post_init__(self) -> None:
        Budget.parse(self.budget)
        for name, known in (("budget_unit", UNITS), ("budget_schedule", SCHEDULES)):
            if getattr(self, name) not in known:
                raise AttendError(
                    f"{name} is {getattr(self, name)!r}, expected one of {', '.join(known)}"
                )
        for name in ("sink", "window", "probe"):
            if getattr(self, name) < 0:
                raise AttendError(f"{name} is {getattr(self, name)}, expected 0 or more")
        if self.window < 1:
            raise AttendError("window is 0, expected at least 1: the newest token is always read")

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> SparseAttention:
        index = self.make_index(model, store)
        return SparseAttention(self, model.config, store, n_ctx, index)

    @abstractmethod
    def make_index(self, model: ModelInfo, store: KVStore) -> TokenIndex:
        """The method's index over one context's store."""


class TokenIndex(ABC):
    """What a method keeps about the stored keys, and how it chooses with it."""

    notices: tuple[str, ...] = ()
    column: Column | None = None
    """Where it is kept; None: the stored keys themselves are searched."""

    @abstractmethod
    def extend(self, layer: LayerView, first: int, last: int) -> None:
        """Index the stored keys of tokens first … last - 1 of the layer."""

    def leave_out(self, layer: LayerView, stop: int) -> None:
        """The layer, which is not searched, has tokens 0 … stop - 1: see `Column`."""
        if self.column is not None:
            self.column.filled[layer.index] = stop

    @abstractmethod
    def prepare(self, n_ctx: int, k: int) -> None:
        """Make room for choices of up to k tokens a query head among up to n_ctx."""

    @abstractmethod
    def choose(
        self,
        layer: LayerView,
        q: F32,
        among: Range,
        k: int,
        lists: NDArray[np.uint32],
        counts: NDArray[np.int64],
    ) -> int:
        """Fill the lists of tokens for q (1, H, E); gives the bytes of index read."""


class SparseAttention(BoundAttend):
    """A sparse method over one context."""

    def __init__(
        self, method: Sparse, config: ModelConfig, store: KVStore, n_ctx: int, index: TokenIndex
    ) -> None:
        from ...ops.attention.decode.gathered import GatherScratch

        self.method, self._config, self._full = method, config, FullAttention()
        self._index, self.notices = index, index.notices
        sparse = [i for i, layer in enumerate(config.layers) if layer.window is None]
        weights = layer_weights(len(sparse), method.budget_schedule)
        self._weights = dict(zip(sparse, weights))
        self._budget = Budget.parse(method.budget)
        self._group = config.n_heads // config.n_kv_heads
        self.reads = [LayerReads(i) for i in range(config.n_layers)]
        most = max((self._choices(n_ctx, w) for w in weights), default=1)
        room = min(n_ctx, method.sink + method.window + most * self._group)
        self._lists = np.zeros((config.n_kv_heads, room), np.uint32)
        self._counts = np.zeros(config.n_kv_heads, np.int64)
        self._scratch = GatherScratch(config.n_heads, config.n_kv_heads, store.layout, room)
        self._index.prepare(n_ctx, most)
        self._ahead = ReadAhead(sparse)
        self._probe = MassProbe(config, store, n_ctx) if method.probe else None

    def _choices(self, stored: int, weight: float) -> int:
        """Tokens that one query head may choose out of `stored`."""
        allowed = self._budget.tokens(stored) * weight
        return max(1, int(allowed if self.method.budget_unit == "query-head" else
                          allowed / self._group))  # fmt: skip

    def appended(self, layer: LayerView, start: int, n_tokens: int) -> None:
        if layer.config.window is None:
            self._extend(layer, start, start + n_tokens)
        else:
            self._index.leave_out(layer, start + n_tokens)

    def _extend(self, layer: LayerView, start: int, stop: int) -> None:
        """Index what is new, what was overwritten, and what was never indexed before it."""
        column = self._index.column
        if column is None:
            return
        self._index.extend(layer, min(start, int(column.filled[layer.index])), stop)
        column.filled[layer.index] = stop

    def build(
        self,
        layers: list[LayerView],
        n_tokens: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        column = self._index.column
        for done, layer in enumerate(layers, 1):
            missing = column is not None and column.filled[layer.index] < n_tokens
            if layer.config.window is not None:
                self._index.leave_out(layer, n_tokens)
            elif missing:
                self._extend(layer, n_tokens, n_tokens)
            if progress is not None:
                progress(done, len(layers))

    def __call__(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        from ...ops.attention.decode.gathered import gathered_attention

        among = self._among(layer, q, start)
        if among is None:
            self._full(layer, q, start, out)
            self.reads[layer.index].full_steps += len(q) == 1
            return
        began = time.perf_counter()
        self._ahead.before(layer)
        k = self._choices(among.stop, self._weights[layer.index])
        index_bytes = self._index.choose(layer, q, among, k, self._lists, self._counts)
        if self.writer is not None:
            self.writer.add(layer.index, among.stop, self._lists, self._counts)
        self._ahead.chosen(layer, self._lists, self._counts)
        chosen = time.perf_counter()
        gathered_attention(
            q,
            self._lists,
            self._counts,
            layer.store.segments(layer.index),
            out,
            scale=layer.config.attention_scale,
            softcap=layer.config.attention_softcap,
            scratch=self._scratch,
        )
        self._count(layer, among, index_bytes, chosen - began, time.perf_counter() - chosen)
        reads = self.reads[layer.index]
        if self._probe is not None and reads.steps % self.method.probe == 0:
            reads.probes += 1
            reads.covered_mass += self._probe(layer, q, among.stop, self._lists, self._counts)

    def _among(self, layer: LayerView, q: F32, start: int) -> Range | None:
        """The tokens to choose from; None where everything is read."""
        from ...ops.select import Range

        weight = self._weights.get(layer.index)
        if len(q) > 1 or weight is None:
            return None
        stored, method = start + 1, self.method
        most = self._choices(stored, weight) * self._group
        if method.sink + method.window + most >= stored:
            return None
        return Range(method.sink, stored - method.window, stored)

    def _count(
        self, layer: LayerView, among: Range, index_bytes: int, choosing: float, reading: float
    ) -> None:  # fmt: skip
        reads, layout = self.reads[layer.index], layer.store.layout
        attended = int(self._counts.sum())
        row_bytes = layout.k_row_bytes + layout.v_row_bytes + layout.scale_row_bytes
        reads.steps += 1
        reads.stored_tokens += among.stop * self._config.n_kv_heads
        reads.attended_tokens += attended
        reads.index_bytes += index_bytes
        reads.attention_bytes += attended * row_bytes
        reads.index_seconds += choosing
        reads.attention_seconds += reading
