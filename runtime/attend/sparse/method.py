"""The options that sparse methods share, how they are opened, and their budgets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from ....models.config import ModelConfig
from ....ops.device import KVDevice
from ....system.spelling import spelt
from ....system.values import Budget
from ...loading.model_info import ModelInfo
from ...methods import option
from ...store import KVStore
from ...store.ram.slots import SlotStore
from ..base import Attend, AttendError, BoundAttend
from .attention import SparseAttention
from .index import SlotIndex, TokenIndex

UNITS = ("kv-head", "query-head")
NONE = "none"
_MOST_LAYERS = 1 << 16  # of any model


@dataclass(frozen=True)
class Sparse(Attend, ABC):
    """A sparse method: options common to all, and how it is opened.

    sink, window: the first and the last tokens, which are always read. dense_layers: layers that
    read every token, as "0,16", "none" or a sequence of numbers. probe: every so many steps of a
    layer, measure the softmax mass covered and the error of the output (0: never; it reads all
    tokens).
    """

    selects: ClassVar[bool] = True

    sink: int = option(0, "always read the first N tokens", int)
    window: int = option(0, "always read the last N tokens", int)
    dense_layers: str | Sequence[int] = option(
        NONE, "layers that read every token, such as 0,16, or none", metavar="N,…"
    )
    probe: int = option(
        0, "every N steps measure the softmax mass that was read and the error of the output", int
    )

    def __post_init__(self) -> None:
        self.check_fields(AttendError)
        if self.window < 1:
            raise AttendError("window is 0, expected at least 1: the newest token is always read")
        self.dense(_MOST_LAYERS)

    @abstractmethod
    def max_chosen(self, stored: int, group: int, share: float) -> int:
        """Tokens that one of the `group` query heads of a KV head may choose out of `stored`, in a
        layer with `share` times the mean number (see `shares`)."""

    def reads_all(self, stored: int, group: int, share: float) -> bool:
        """Whether the method may read all of `stored` tokens, so that attention is exact."""
        most = self.max_chosen(stored, group, share)
        return self.sink + self.window + most * group >= stored

    def shares(self, n_layers: int) -> list[float]:
        """Each choosing layer's budget as a multiple of their mean."""
        return [1.0] * n_layers

    def dense(self, n_layers: int, windowed: Collection[int] = ()) -> frozenset[int]:
        """The layers that read every token; `AttendError` where the model has no such layer.

        windowed: those with a sliding window, which never choose.
        """
        words: Sequence[object] = self.dense_layers
        if isinstance(words, str):
            words = [] if words == NONE else words.split(",")
        try:
            layers = frozenset(int(str(word)) for word in words)
        except ValueError:
            raise AttendError(
                f"dense layers are {self.dense_layers!r}, expected numbers such as 0,16, or none"
            ) from None
        for layer in sorted(layers):
            if not 0 <= layer < n_layers:
                raise AttendError(
                    f"dense layer {layer} does not exist: the layers are 0 to {n_layers - 1}"
                )
        return layers

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> BoundAttend:
        if self.host_only and isinstance(store.device, KVDevice):
            raise AttendError(f"{self.host_only}: K and V have to be in the host's memory")
        dense = self.dense_in(model.config)
        index = self.make_index(model, store)
        return SparseAttention(self, dense, model.config, store, n_ctx, index)

    def dense_in(self, config: ModelConfig) -> frozenset[int]:
        """The layers of a model that read every token by choice."""
        layers = config.attention_layers
        windowed = [i for i, layer in enumerate(layers) if layer.window is not None]
        return self.dense(len(layers), windowed)

    @abstractmethod
    def make_index(self, model: ModelInfo, store: KVStore) -> TokenIndex:
        """The method's index over one context's store."""


@dataclass(frozen=True)
class SlotSparse(Sparse, ABC):
    """A sparse method that can choose among the slots of contexts that evict, and on a GPU."""

    @property
    def host_only(self) -> str:
        return spelt("probe") if self.probe else ""

    @property
    def needs_all_tokens(self) -> bool:
        return False

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> BoundAttend:
        from .slots import SlotAttention

        if not isinstance(store, SlotStore):
            return super().open(model, store, n_ctx)
        dense = self.dense_in(model.config)
        index = self.make_slot_index(model, store)
        return SlotAttention(self, dense, model.config, store, n_ctx, index)

    @abstractmethod
    def make_slot_index(self, model: ModelInfo, store: SlotStore) -> SlotIndex:
        """The method's index over one context's slots; not called unless `needs_all_tokens` is
        False."""


@dataclass(frozen=True)
class _Budget:
    """The option of `BudgetedSparse` that comes first, before those of `Sparse`."""

    budget: Budget | str | int = option(  # noqa: RUF009 - a field
        Budget.parse("1%"),
        "tokens read per KV head: a share of those stored such as 1%, or a number",
        Budget,
    )


@dataclass(frozen=True)
class BudgetedSparse(Sparse, _Budget, ABC):
    """A sparse method that reads as many tokens as its budget allows.

    budget: tokens read per KV head beside sinks and window, "1%" of those stored or a number; its
    query heads share it, or with budget_unit "query-head" each may choose as many.
    """

    budget_unit: str = option(
        "kv-head",
        "whose budget it is: shared by the query heads of a KV head, or each one's",
        choices=UNITS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "budget", Budget.parse_named("budget", self.budget, AttendError))

    def max_chosen(self, stored: int, group: int, share: float) -> int:
        assert isinstance(self.budget, Budget)
        allowed = self.budget.tokens(stored) * share
        return max(1, int(allowed if self.budget_unit == "query-head" else allowed / group))

    def shortened(self) -> Self:
        return replace(self, budget=16, sink=4, window=16)
