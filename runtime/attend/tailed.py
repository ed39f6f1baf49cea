"""Methods that choose tokens and may count the others by the means of their blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from ...system.spelling import spelt
from ..loading.model_info import ModelInfo
from ..methods import option
from ..store import KVStore
from .indexes import MeansIndex
from .sparse import BudgetedSparse, SlotSparse, TokenIndex

TAILS = ("none", "means")


@dataclass(frozen=True)
class TailedSparse(BudgetedSparse, SlotSparse, ABC):
    """A method with a budget, and a tail: what the tokens that were not chosen count.

    tail: "none", nothing; "means", for each block of 32 similar keys as many tokens at its mean key
    as were not chosen of it, with the mean value (the open segment has no blocks). Source:
    RetroInfer (estimation zone).
    """

    tail: str = option(
        "none",
        "what is not chosen counts: not at all, or by the means of its blocks",
        choices=TAILS,
    )

    @property
    def needs_all_tokens(self) -> bool:
        return self.tail != "none"

    @property
    def host_only(self) -> str:
        return super().host_only or (f"{spelt('tail')} {self.tail}" if self.tail != "none" else "")

    def make_index(self, model: ModelInfo, store: KVStore) -> TokenIndex:
        index = self.make_choice(model, store)
        return MeansIndex(index, model.config, store) if self.tail == "means" else index

    @abstractmethod
    def make_choice(self, model: ModelInfo, store: KVStore) -> TokenIndex:
        """The index that chooses, over one context's store."""
