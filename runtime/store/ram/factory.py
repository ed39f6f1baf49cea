"""The KV cache in memory, as users choose it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ....ops.arrays import F32
from ....ops.attention.layout import TileLayout, layout_of
from ....system.spelling import spelt
from ...memory import available_bytes, human_bytes
from ..base import SlotPlan, StoreError
from ..centre import has_centre, mean_keys
from ..method import Store
from ..states import states_of
from ..windowed import windows_of
from .slots import SlotStore
from .store import RamStore

if TYPE_CHECKING:
    from ....models.config import ModelConfig
    from ...loading.model_info import ModelInfo

SPARE = 0.1
"""Share of the available memory that is left to other programs where kvarn chooses or advises."""


@dataclass(frozen=True)
class Ram(Store):
    """A KV cache in memory; `k` and `v` are the stored types: "f16", "q8_0" or "q4_0".

    centred: subtract the mean from keys in 4 bits, see `centre`.
    """

    name: ClassVar[str] = "ram"
    summary: ClassVar[str] = "in memory"

    k: str = "f16"
    v: str = "f16"
    centred: bool = True

    def tokens_in(self, config: ModelConfig, n_bytes: int) -> int:
        return self.empty(config).tokens_in(int(n_bytes * (1 - SPARE)))

    def layout(self, config: ModelConfig) -> TileLayout:
        """How K and V are stored."""
        return layout_of(config.head_dim, self.k, self.v)

    def centre(self, model: ModelInfo) -> F32 | None:
        """The mean keys that are subtracted, if any are: see `centre`."""
        return mean_keys(model) if self.centred and has_centre(model.config, self.k) else None

    def types(self) -> tuple[str, str]:
        return self.k, self.v

    def empty(self, config: ModelConfig) -> RamStore:
        """A store of no tokens, which has no memory yet."""
        windows = windows_of(config)
        in_windows = None
        if any(windows):
            layer = next(layer for layer, window in zip(config.kv_layers, windows) if window)
            in_windows = layout_of(layer.head_dim, self.k, self.v), layer.n_kv_heads
        sizes = config.n_kv_layers, config.n_kv_heads
        return RamStore(self.layout(config), *sizes, windows, in_windows)

    def check(self, config: ModelConfig, n_ctx: int, beside: int = 0) -> None:
        """Raise `StoreError` where neither memory nor `beside`, bytes of other room, holds a
        context."""
        store, available = self.empty(config), available_bytes()
        needed = store.bytes_for(n_ctx)
        if needed > beside:
            self._check_room(
                needed,
                available,
                f"a context of {n_ctx:,} tokens",
                f"at most {self.tokens_in(config, available):,} tokens fit; use a smaller "
                + spelt("ctx"),
            )

    def open(self, model: ModelInfo, n_ctx: int) -> RamStore:
        self.check(model.config, n_ctx)
        store = self.empty(model.config)
        store.centre, store.states = self.centre(model), states_of(model.config)
        return store

    def check_slots(self, config: ModelConfig, slots: SlotPlan) -> SlotStore:
        """The slots of a context that evicts, which have no memory yet; `StoreError` where it has
        no room for them."""
        store = SlotStore(self.layout(config), slots.sizes, config.n_kv_heads, slots.whole)
        kept = f"keeping {max(slots.sizes):,} tokens"
        self._check_room(
            store.bytes_needed(), available_bytes(), kept, f"use a smaller {spelt('keep_budget')}"
        )
        return store

    def open_slots(self, model: ModelInfo, n_ctx: int, slots: SlotPlan) -> SlotStore:
        store = self.check_slots(model.config, slots)
        store.centre, store.states = self.centre(model), states_of(model.config)
        return store

    def _check_room(self, needed: int, available: int, purpose: str, advice: str) -> None:
        """`StoreError` if `purpose` needs more memory than there is."""
        if needed > available:
            can_shrink = not self.k == self.v == "q4_0"
            smaller = f" or a smaller {spelt('kv_type')} (q8_0, q4_0)" if can_shrink else ""
            raise StoreError(
                f"{purpose} needs {human_bytes(needed)} of KV cache (K {self.k}, V {self.v}) and "
                f"{human_bytes(available)} of memory is available: {advice}{smaller}"
            )
