"""keep `all`: nothing is evicted."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Keep


@dataclass(frozen=True)
class KeepAll(Keep):
    """Every token keeps its place, so the context holds as many tokens as the store has places."""

    def room_for(self, n_tokens: int, n_ctx: int) -> bool:
        return n_tokens <= n_ctx
