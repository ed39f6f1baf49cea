"""keep `all`: nothing is evicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import Keep


@dataclass(frozen=True)
class KeepAll(Keep):
    """Every token keeps its place, so the context holds as many tokens as the store has places."""

    name: ClassVar[str] = "all"

    def evicting(self, n_ctx: int) -> None:
        return None
