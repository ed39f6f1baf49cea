"""Of what `topk` chooses, the fewest tokens that hold a share of the softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import kvarn
from kvarn.ops.arrays import F32
from kvarn.ops.select import Lists
from kvarn.runtime.attend import AttendError, LayerView
from kvarn.runtime.attend.indexes import FlatIndex
from kvarn.runtime.attend.sparse import SEED, Chosen, TokenIndex
from kvarn.runtime.methods import option

from ..refined import Refined, RefinedTopK
from .api import NO_TOTALS, SAMPLE, CoverScratch, SoftmaxBudget, cover, totals_of

if TYPE_CHECKING:
    from kvarn.models.config import ModelConfig
    from kvarn.ops.select import Range, Wanted
    from kvarn.runtime.loading.model_info import ModelInfo
    from kvarn.runtime.store import KVStore


@kvarn.register
@dataclass(frozen=True)
class Covered(RefinedTopK):
    """`topk` in which each query head takes the fewest best tokens that hold a share of its
    softmax, such as "95%", sinks and window included, and no more than its budget."""

    name: ClassVar[str] = "covered"
    summary: ClassVar[str] = "as few of the tokens that `topk` chooses as hold a share of softmax"

    share: str = option("95%", "of the softmax that the tokens hold, such as 95%")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.part()
        if self.tail != "none":
            raise AttendError(f"tail is {self.tail}, expected none: it is what is left out")

    def part(self) -> float:
        """The share as a number. Raises `AttendError`."""
        words = str(self.share).strip()
        try:
            percent = float(words.removesuffix("%"))
        except ValueError:
            percent = 0.0
        if not words.endswith("%") or not 0 < percent <= 100:
            raise AttendError(f"share is {self.share!r}, expected a share of the softmax (95%)")
        return percent / 100

    def make_index(self, model: ModelInfo, store: KVStore) -> TokenIndex:
        index, fixed = super().make_index(model, store), self.sink + self.window
        return Covering(index, self.part(), fixed, model.config, store)


class Covering(Refined):
    """Another index's lists, shortened until they hold `share` of each query head's softmax.

    The whole softmax is known where the index computes all scores (`flat`). Else what the lists
    leave out is estimated from a stratified sample of 512 tokens, see `cover`.
    """

    def __init__(
        self, index: TokenIndex, share: float, fixed: int, config: ModelConfig, store: KVStore
    ) -> None:
        """fixed: how many tokens are always read."""
        super().__init__(index)
        self._share, self._fixed = share, fixed
        self._config, self._layout = config, store.layout
        self._knows = isinstance(index, FlatIndex)

    def prepare(self, n_ctx: int, k: int) -> None:
        heads, kv_heads = self._config.n_heads, self._config.n_kv_heads
        room = min(n_ctx, self._fixed + k * heads // kv_heads)
        self.index.prepare(n_ctx, k)
        self._scratch = CoverScratch(heads, kv_heads, n_ctx, room, self._layout)

    def choose(self, layer: LayerView, q: F32, among: Range, wanted: Wanted, chosen: Chosen) -> int:
        n_bytes = self.index.choose(layer, q, among, wanted, chosen)
        layout, segments = self._layout, layer.store.segments(layer.index)
        scoring, totals = layer.softmax.scoring, NO_TOTALS
        looked_at = int(chosen.counts.sum())
        if self._knows:
            totals = totals_of(q, segments, among, scoring, self._scratch)
        else:
            looked_at += min(SAMPLE, among.last - among.first) * len(chosen.counts)
        lists, most = Lists(chosen.lists, chosen.counts), SoftmaxBudget(self._share, wanted.k, SEED)
        cover(
            q, segments, among, most, lists, scoring=scoring, scratch=self._scratch, totals=totals
        )
        return n_bytes + looked_at * (layout.k_row_bytes + layout.scale_row_bytes)
