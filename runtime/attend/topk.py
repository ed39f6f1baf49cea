"""attend `topk`: softmax over the largest products q·k (top-k attention)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...system.spelling import spelt
from ..loading.model_info import ModelInfo
from ..methods import option
from ..store import KVStore
from ..store.ram.slots import SlotStore
from .base import AttendError
from .indexes import FlatIndex, SketchIndex, SlotSketches
from .sparse import SlotIndex, TokenIndex
from .tailed import TailedSparse

NAMES = ("flat", "sketch")


@dataclass(frozen=True)
class TopK(TailedSparse):
    """softmax over sinks, window and the k tokens with the largest q·k of each query head.

    index: how those are found; "flat" reads all keys and is exact, "sketch" (the default) reads
    one bit per dimension and key and scores the best estimates exactly.
    Source: top-k attention, algorithm 1, with one softmax over all that is read; RaBitQ for the
    sketches.
    """

    name: ClassVar[str] = "topk"
    summary: ClassVar[str] = "the tokens whose keys have the largest products with the query"

    sink: int = 4
    window: int = 256
    index: str = option(
        "sketch", "search all keys, or their sketches of one bit per dimension", choices=NAMES
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tail == "means" and self.index != "sketch":
            raise AttendError(f"tail means needs index sketch, found index {self.index}")

    @classmethod
    def variants(cls) -> tuple[TopK, ...]:
        return cls(index="flat"), cls(), cls(tail="means")

    def make_choice(self, model: ModelInfo, store: KVStore) -> TokenIndex:
        flat = self.index == "flat"
        return FlatIndex(model.config, store) if flat else SketchIndex(model, store)

    @property
    def host_only(self) -> str:
        return f"{spelt('index')} {self.index}" if self.index != "sketch" else super().host_only

    def make_slot_index(self, model: ModelInfo, store: SlotStore) -> SlotIndex:
        over = FlatIndex if self.index == "flat" else SlotSketches
        return over(model.config, store)
