"""attend `auto`: every token while that costs little, then a choice of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from ...ops.device import KVDevice
from ...system.values import Budget
from ..loading.model_info import ModelInfo
from ..methods import option
from ..store import KVStore
from ..store.ram.slots import SlotStore
from .base import BoundAttend
from .full import FullAttention
from .topk import TopK

SHARE = "1.5%"
"""The default budget."""


@dataclass(frozen=True)
class Auto(TopK):
    """`full` up to `full_up_to` tokens in the store, with the same bits; then `topk`.

    The defaults are those with which real models lose least for what they read
    (docs/guides/methods.md): each query head chooses a share, and the rest counts by its means
    where the store has them, in order and in the host's memory. The default of full_up_to is where
    questions about packs begin to be read sparsely (`--prefill-from`). A context for no more tokens
    is `full` altogether.
    All options of `topk` can be given.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = (
        f"every token up to 8,192, then the {SHARE} that each query head chooses as `topk`, and "
        "means of the rest"
    )

    budget: Budget | str | int = Budget.parse(SHARE)  # noqa: RUF009 - frozen
    budget_unit: str = "query-head"
    tail: str = "means"
    full_up_to: int = option(8192, "read every token as long as there are at most N", int)

    @classmethod
    def variants(cls) -> tuple[Auto, ...]:
        return (cls(),)

    @property
    def needs_all_tokens(self) -> bool:
        return super(Auto, self._without_tail()).needs_all_tokens

    @property
    def host_only(self) -> str:
        return super(Auto, self._without_tail()).host_only

    def _without_tail(self) -> Self:
        return replace(self, tail="none")

    def shortened(self) -> Self:
        return replace(super().shortened(), full_up_to=0)

    def reads_all(self, stored: int, group: int, share: float) -> bool:
        return stored <= self.full_up_to or super().reads_all(stored, group, share)

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> BoundAttend:
        bound: BoundAttend
        if n_ctx <= self.full_up_to:
            bound = FullAttention()
            notice = f"full attention, for the context has {n_ctx:,} tokens at most"
        else:
            in_order = not isinstance(store, SlotStore) and not isinstance(store.device, KVDevice)
            method = self if in_order else self._without_tail()
            bound = super(Auto, method).open(model, store, n_ctx)
            notice = (
                f"full attention up to {self.full_up_to:,} tokens, then topk with a budget of "
                f"{self.budget} per {self.budget_unit.replace('-', ' ')}"
            )
            if method.tail == "means":
                notice += ", and means for the rest"
        bound.notices = (f"method auto: {notice}", *bound.notices)
        return bound
