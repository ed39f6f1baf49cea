"""Contexts in memory that wait for a prompt which goes on where they end.

What the library cannot write to disk stays here. Such a context serves one request at a time, and
what it is cut back from is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...context.reading.prompt import n_common
from ...memory import available_bytes

if TYPE_CHECKING:
    from ...context import Context
    from ...context.planning.request import ContextRequest
    from .entry import KVKey

MOST = 8
"""Contexts that wait, at most."""
MEMORY_SHARE = 4
"""They take at most this part of the memory that is available."""


class ContextKey(NamedTuple):
    """What requests have in common of which one may go on in another's context: what they ask of
    it, and how the tokens that it begins with were read."""

    request: ContextRequest
    kv_key: KVKey


class IdleContexts:
    """At most 8, in at most a quarter of the available memory.

    The least recently used ones are closed first."""

    def __init__(self) -> None:
        self._waiting: list[tuple[ContextKey, Context]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def n_bytes(self) -> int:
        """Bytes of memory."""
        return sum(context.n_bytes for _, context in self._waiting)

    def take(self, ids: Sequence[int], key: ContextKey, least: int) -> Context | None:
        """A context of just such a request that begins with `least` or more of `ids`, and with no
        more than as many other tokens."""
        best, best_n = None, least - 1
        for place, (asked, context) in enumerate(self._waiting):
            n = n_common(ids, context.tokens) if asked == key else 0
            if n > best_n and len(context.tokens) <= 2 * n:
                best, best_n = place, n
        if best is None:
            return None
        context = self._waiting.pop(best)[1]
        context.cut_back(best_n)
        return context

    def put(self, key: ContextKey, context: Context) -> None:
        """Keep a context for a request of this key."""
        self._waiting.append((key, context))
        most_bytes = (available_bytes() + self.n_bytes) // MEMORY_SHARE
        while len(self._waiting) > MOST or (self._waiting and self.n_bytes > most_bytes):
            self._waiting.pop(0)[1].close()

    def close(self) -> None:
        """Close them all."""
        while self._waiting:
            self._waiting.pop()[1].close()
