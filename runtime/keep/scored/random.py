"""keep `random`: chance. What does not do better has learned nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..base import KeepError
from .base import Scored

if TYPE_CHECKING:
    from .base import F32, I32
    from .slots import ScoredSlots


@dataclass(frozen=True)
class KeepRandom(Scored):
    """Each KV head of each layer keeps tokens drawn uniformly. Raises `KeepError` for a negative
    seed."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "after the prompt, tokens drawn at random: a baseline for the others"
    uses_queries: ClassVar[bool] = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise KeepError(f"keep random: seed is {self.seed}, expected 0 or more")
        super().__post_init__()

    def scores(self, slots: ScoredSlots, n_held: int) -> F32:
        return np.zeros((slots.store.n_kv_heads, n_held), np.float32)

    def choose(self, scores: F32, budget: int, seed: tuple[int, ...]) -> I32:
        rows = [
            np.random.default_rng((self.seed, *seed, head)).permutation(scores.shape[1])[:budget]
            for head in range(len(scores))
        ]
        return np.sort(np.stack(rows), 1).astype(np.int32)
