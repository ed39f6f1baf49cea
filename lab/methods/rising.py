"""`topk` with budgets that rise from layer to layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import kvarn
from kvarn.runtime.attend import TopK


@kvarn.register
@dataclass(frozen=True)
class Rising(TopK):
    """Layer i of the n that choose has 2 (i + 1) / (n + 1) of the mean budget, 1 in the mean.

    Source: top-k attention, figure 8.
    """

    name: ClassVar[str] = "rising"
    summary: ClassVar[str] = "`topk` with a budget that rises from first to last layer"

    @classmethod
    def variants(cls) -> tuple[Rising, ...]:
        return (cls(),)

    def shares(self, n_layers: int) -> list[float]:
        return [2 * (i + 1) / (n_layers + 1) for i in range(n_layers)]
