"""What keep methods that score all tokens at once have in common: options, opening a context."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....ops.attention.layout import SEGMENT
from ...methods import option
from ...store import SlotPlan
from ..base import KeepError
from ..cache import KVCache, closed_on_error, layer_views
from ..evicting import Evicting
from ..slots import Ring

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...attend import Attend
    from ...loading.model_info import ModelInfo
    from ...store import Store
    from .slots import ScoredSlots

    F32 = NDArray[np.float32]
    I32 = NDArray[np.int32]


@dataclass(frozen=True)
class Scored(Evicting):
    """A keep method that scores all tokens of a prompt at once and evicts all but the best.

    A prompt, all that is read before the first generated token, is held whole. Then each KV head of
    a layer without a window keeps `budget` tokens, which move to the first slots in their order.
    (Where a prompt fits in the budget, this comes after the first one that does not.) every: evict
    again, down to the budget, whenever that many tokens have followed, generated or not; 0: only
    once.
    Scores are F = the sum, over the last queries (the proxies), of the rows of their causal softmax
    over what is held, and over the query heads that share a KV head. Raises `KeepError` for budgets
    as `Evicting`, and for a negative `every`.
    """

    every: int = option(
        0,
        "evict again, down to the budget, whenever N more tokens have followed (default 0: once, "
        "after the prompt)",
        kind=int,
    )
    uses_queries: ClassVar[bool] = True
    """Whether queries score; without them, none are kept."""
    sums_all: ClassVar[bool] = False
    """Whether all queries are proxies; what they score is then summed while the prompt is read."""

    def __post_init__(self) -> None:
        if self.every < 0:
            raise KeepError(f"keep {self.name}: every is {self.every}, expected 0 or more")
        super().__post_init__()

    @property
    def protected(self) -> int:
        return 0

    def n_proxies(self, n_tokens: int, budget: int) -> int:
        """How many of the last queries score `n_tokens` tokens, of which `budget` stay.

        At a later eviction, at most those since the last one do.
        """
        return n_tokens if self.uses_queries else 0

    @abstractmethod
    def choose(self, scores: F32, budget: int, seed: tuple[int, ...]) -> I32:
        """Slots that stay, ascending, int32 (J, budget); scores float32 (J, n), n > budget.

        seed: of the layer and the moment, for methods that draw.
        """

    def scores(self, slots: ScoredSlots, n_held: int) -> F32:
        """Scores (J, n) of the first n slots of a layer."""
        return slots.attention_sums(n_held)

    def _open(
        self, model: ModelInfo, n_ctx: int, max_chunk: int, attend: Attend, store: Store
    ) -> KVCache:
        from ....ops.evict import Staging
        from .attention import ScoredAttention
        from .cache import ScoredCache
        from .queries import Queries
        from .slots import ScoredSlots

        budget, config = self.slots(n_ctx), model.config
        sizes = tuple(layer.window or budget + self.every for layer in config.layers)
        whole = tuple(i for i, layer in enumerate(config.layers) if layer.window is None)
        opened = store.open(model, n_ctx, SlotPlan(str(self), sizes, whole))
        with closed_on_error(opened):
            heads, most = config.n_kv_heads, max(sizes)
            layers = [replace(layer, window=None) for layer in config.layers]
            views = layer_views(model, layers, opened, max(most, SEGMENT), max_chunk)
            staging = Staging(opened.layout, config.n_heads // heads, heads, most, max_chunk)
            queries = Queries(whole, config.n_heads, config.head_dim)
            slots = [
                ScoredSlots(view, self, budget, queries)
                if layer.window is None
                else Ring(opened, i, staging, sinks=0)
                for i, (layer, view) in enumerate(zip(config.layers, views))
            ]
            bound = attend.open(model, opened, max(n_ctx, most))
            attention = ScoredAttention(views, slots, bound)
            return ScoredCache(opened, bound, attention, queries, n_ctx)
