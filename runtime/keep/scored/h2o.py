"""keep `h2o`: the newest tokens, and what all queries attended to most (heavy hitters)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from .base import Scored
from .choosing import last, rows_of_best

if TYPE_CHECKING:
    from .base import F32, I32


@dataclass(frozen=True)
class H2O(Scored):
    """Half of the budget for the newest tokens, half for the highest sums over all queries.

    The sums grow while the prompt is read, so that queries need no memory; those of tokens that
    stay go on. Scoring costs about as many products as attention to the prompt does. Source: Zhang
    et al. 2023, with equal halves as there; they evict at each step.
    """

    name: ClassVar[str] = "h2o"
    summary: ClassVar[str] = (
        "after the prompt, the newest and those that all tokens attended to most, half each"
    )
    sums_all: ClassVar[bool] = True

    def choose(self, scores: F32, budget: int, seed: tuple[int, ...]) -> I32:
        n_slots, newest = scores.shape[1], budget // 2
        heavy = rows_of_best(scores[:, : n_slots - newest], budget - newest)
        recent = np.tile(last(newest, n_slots), (len(scores), 1))
        return np.concatenate([heavy, recent], 1).astype(np.int32)
