"""attend `auto`: every token while that costs little, then a choice of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from ...system.values import Budget
from ..methods import option
from .errors import AttendError
from .topk import TopK

if TYPE_CHECKING:
    from ..loading.model_info import ModelInfo
    from ..store import KVStore
    from .base import BoundAttend


@dataclass(frozen=True)
class Auto(TopK):
    """`full` up to `full_up_to` tokens in the store, with the same bits; then `topk`.

    2% is a budget with which `topk` answered as full attention does wherever measured; the default
    of full_up_to is where questions about packs begin to be read sparsely (`--prefill-from`). A
    context for no more tokens is `full` altogether. All options of `topk` can be given.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "every token up to 8,192, then the 2% that `topk` chooses"

    budget: Budget | str | int = Budget.parse("2%")  # noqa: RUF009 - frozen
    full_up_to: int = option(8192, "read every token as long as there are at most N", int)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.full_up_to < 0:
            raise AttendError(f"full-up-to is {self.full_up_to}, expected 0 or more")

    @classmethod
    def variants(cls) -> tuple[Auto, ...]:
        return (cls(),)

    def shortened(self) -> Self:
        return replace(super().shortened(), full_up_to=0)

    def reads_all(self, stored: int, group: int, share: float) -> bool:
        return stored <= self.full_up_to or super().reads_all(stored, group, share)

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> BoundAttend:
        from .full import FullAttention

        bound: BoundAttend
        if n_ctx <= self.full_up_to:
            bound = FullAttention()
            notice = f"full attention, for the context has {n_ctx:,} tokens at most"
        else:
            bound = super().open(model, store, n_ctx)
            notice = (
                f"full attention up to {self.full_up_to:,} tokens, then topk with a budget of "
                f"{self.budget}"
            )
        bound.notices = (f"method auto: {notice}", *bound.notices)
        return bound
