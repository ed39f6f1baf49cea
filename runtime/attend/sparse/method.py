"""How sparse methods are opened, and their budgets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

from ....models.config import ModelConfig
from ....ops.device import KVDevice
from ....system.values import Budget
from ...loading.model_info import ModelInfo
from ...methods import option
from ...store import KVStore
from ...store.ram.slots import SlotStore
from ..base import AttendError, BoundAttend
from .attention import SparseAttention
from .index import SlotIndex, TokenIndex
from .options import SparseOptions

UNITS = ("kv-head", "query-head")


@dataclass(frozen=True)
class Sparse(SparseOptions, ABC):
    """A sparse method: its options, and how it is opened."""

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
class OverSlots(Sparse, ABC):
    """A sparse method that can choose among the slots of contexts that evict, and on a GPU."""

    @property
    def host_only(self) -> str:
        return "--probe" if self.probe else ""

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
    """The option of `Budgeted` that comes first, before those of `Sparse`."""

    budget: Budget | str | int = option(  # noqa: RUF009 - a field
        Budget.parse("1%"),
        "tokens read per KV head: a share of those stored such as 1%, or a number",
        Budget,
    )


@dataclass(frozen=True)
class Budgeted(Sparse, _Budget, ABC):
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
        object.__setattr__(self, "budget", Budget.named("budget", self.budget, AttendError))
        if self.budget_unit not in UNITS:
            raise AttendError(
                f"budget_unit is {self.budget_unit!r}, expected one of {', '.join(UNITS)}"
            )

    def most(self, stored: int, group: int, share: float) -> int:
        assert isinstance(self.budget, Budget)
        allowed = self.budget.tokens(stored) * share
        return max(1, int(allowed if self.budget_unit == "query-head" else allowed / group))

    def shortened(self) -> Self:
        return replace(self, budget=16, sink=4, window=16)
