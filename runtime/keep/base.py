"""The interface of every keep method."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Keep(ABC):
    """Decides, after tokens were appended to a layer, which of its tokens give up their place."""

    @abstractmethod
    def room_for(self, n_tokens: int, n_ctx: int) -> bool:
        """Whether a context of `n_tokens` tokens is possible in a store of `n_ctx` places."""
