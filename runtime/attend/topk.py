"""attend `topk`: softmax over the largest products q·k (top-k attention)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..methods import option
from .errors import AttendError
from .indexes import FlatIndex, MeansIndex, SketchIndex, SlotSketches
from .sparse import Budgeted, OverSlots, SlotIndex, TokenIndex

if TYPE_CHECKING:
    from ..loading.model_info import ModelInfo
    from ..store import KVStore
    from ..store.slots import SlotStore

NAMES = ("flat", "sketch")
TAILS = ("none", "means")


@dataclass(frozen=True)
class TopK(Budgeted, OverSlots):
    """softmax over sinks, window and the k tokens with the largest q·k of each query head.

    index: how those are found; "flat" reads all keys and is exact, "sketch" (the default) reads
    one bit per dimension and key and scores the best estimates exactly.
    tail: what the tokens that were not chosen count: "none", nothing; "means", for each block as
    many tokens at its mean key as were not chosen of it, with the mean value (the open segment has
    no blocks). Source: top-k attention, algorithm 1, with one softmax over all
    that is read; RaBitQ for the sketches; RetroInfer (estimation zone) for the means.
    """

    name: ClassVar[str] = "topk"
    summary: ClassVar[str] = "the tokens whose keys have the largest products with the query"

    sink: int = 4
    window: int = 256
    index: str = option(
        "sketch",
        "search all keys, or their sketches of one bit per dimension",
        choices=NAMES,
    )
    tail: str = option(
        "none",
        "what is not chosen counts: not at all, or by the means of its blocks",
        choices=TAILS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.index not in NAMES:
            raise AttendError(f"index is {self.index!r}, expected one of {', '.join(NAMES)}")
        if self.tail not in TAILS:
            raise AttendError(f"tail is {self.tail!r}, expected one of {', '.join(TAILS)}")
        if self.tail == "means" and self.index != "sketch":
            raise AttendError(f"tail means needs index sketch, found index {self.index}")

    @property
    def needs_all_tokens(self) -> bool:
        return self.tail != "none"

    @classmethod
    def variants(cls) -> tuple[TopK, ...]:
        return cls(index="flat"), cls(), cls(tail="means")

    def make_index(self, model: ModelInfo, store: KVStore) -> TokenIndex:
        flat = self.index == "flat"
        index = FlatIndex(model.config, store) if flat else SketchIndex(model, store)
        return MeansIndex(index, model.config, store) if self.tail == "means" else index

    @property
    def host_only(self) -> str:
        if self.index != "sketch":
            return f"--index {self.index}"
        if self.tail != "none":
            return f"--tail {self.tail}"
        return super().host_only

    def make_slot_index(self, model: ModelInfo, store: SlotStore) -> SlotIndex:
        over = FlatIndex if self.index == "flat" else SlotSketches
        return over(model.config, store)
