"""The interface of every kind of store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ..methods import Method
from .base import KVStore, SlotPlan

if TYPE_CHECKING:
    from ...models.config import ModelConfig
    from ...ops.device import KVDevice
    from ..loading.model_info import ModelInfo
    from .facts import PackHead, PrefillFacts
    from .ram.slots import SlotStore


class Store(Method, ABC):
    """A kind of store and its options; `open` makes the store of one context."""

    def head(self) -> PackHead | None:
        """What it holds before a context is opened; None: nothing."""
        return None

    @property
    def n_saved(self) -> int:
        """How many tokens that are."""
        return 0 if (head := self.head()) is None else head.n_tokens

    @property
    def follows_pack(self) -> bool:
        """Whether the tokens that a context reads follow a pack, which does not change."""
        return False

    def recorded_prefill(self) -> PrefillFacts | None:
        """How the tokens that it has were read, if the context goes on after them; None: exactly,
        or it has none."""
        return None

    def for_prefill(self, facts: PrefillFacts | None) -> Store:
        """The same store, which records how the context reads prompts, if it saves."""
        return self

    def tokens_in(self, config: ModelConfig, n_bytes: int) -> int | None:
        """Tokens of context that fit in `n_bytes` of memory; None: it does not hold them there."""
        return None

    @abstractmethod
    def types(self) -> tuple[str, str]:
        """The stored types of K and V."""

    @property
    def gpu_bytes(self) -> int:
        """Bytes of a GPU's memory that it has already."""
        return 0

    def placed_on(self, device: KVDevice) -> Store | None:
        """The store with K and V in the memory of a GPU, where it is not `Resident`."""
        return None

    @abstractmethod
    def open(self, model: ModelInfo, n_ctx: int) -> KVStore:
        """The store of a context of up to `n_ctx` tokens; `StoreError` if it cannot be opened."""

    @abstractmethod
    def open_slots(self, model: ModelInfo, n_ctx: int, slots: SlotPlan) -> SlotStore:
        """The store of a context that evicts; `StoreError` as `open`."""
