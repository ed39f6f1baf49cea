"""keep `tova`: what the last query attends to most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .base import Scored
from .choosing import rows_of_best

if TYPE_CHECKING:
    from .base import F32, I32


@dataclass(frozen=True)
class TOVA(Scored):
    """The last query alone scores.

    Source: Oren et al. 2024, who evict a token at each step, and choose for all heads of a layer
    together; here each KV head chooses, once.
    """

    name: ClassVar[str] = "tova"
    summary: ClassVar[str] = "after the prompt, those that its last token attends to most"

    def n_proxies(self, n_tokens: int, budget: int) -> int:
        return min(1, n_tokens)

    def choose(self, scores: F32, budget: int, seed: tuple[int, ...]) -> I32:
        return rows_of_best(scores, budget)
