"""keep `l2norm`: tokens with small keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .base import Scored
from .choosing import rows_of_best

if TYPE_CHECKING:
    from .base import F32, I32
    from .slots import ScoredSlots


@dataclass(frozen=True)
class L2Norm(Scored):
    """Drops the keys of largest Euclidean norm, as stored; no query is asked.

    Source: Devoto et al. 2024, who leave the first two layers whole; here all layers evict.
    """

    name: ClassVar[str] = "l2norm"
    summary: ClassVar[str] = "after the prompt, those with the shortest keys (no queries)"
    uses_queries: ClassVar[bool] = False

    def scores(self, slots: ScoredSlots, n_held: int) -> F32:
        from ....ops.evict import key_norms

        store = slots.store
        centre = None if store.centre is None else store.centre[slots.layer]
        return -key_norms(
            store.segments(slots.layer), store.layout, n_held, store.n_kv_heads, centre
        )

    def choose(self, scores: F32, budget: int, seed: tuple[int, ...]) -> I32:
        return rows_of_best(scores, budget)
