"""Contexts for requests: what a request asks of one, and who has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from ...system.errors import KvarnError
from ...system.values import WrongValue
from ..context.request import ContextRequest, context_words

if TYPE_CHECKING:
    from ..context import Context
    from ..model import Model


class BadWord(KvarnError):
    """A word about reading that a request cannot have."""


@dataclass
class Lease:
    """A context that one request uses until it gives it back. cached: how many of its ids the
    context holds already, so that the others are to be read."""

    context: Context
    cached: int = 0


class Leases(Protocol):
    """Gives contexts to requests; all of it runs on the engine thread."""

    def open(self, ids: Sequence[int], request: ContextRequest, n_ctx: int) -> Lease:
        """A context with room for `n_ctx` tokens, which holds a beginning of `ids`."""

    def give_back(self, lease: Lease) -> None:
        """The request has ended, whatever it has read and generated."""

    def close(self) -> None:
        """Save and close everything."""


class Fresh:
    """A new context in memory for each request."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def open(self, ids: Sequence[int], request: ContextRequest, n_ctx: int) -> Lease:
        """See `Leases`."""
        return Lease(self._model.open(replace(request, n_ctx=n_ctx)))

    def give_back(self, lease: Lease) -> None:
        """See `Leases`."""
        lease.context.close()

    def close(self) -> None:
        """See `Leases`."""


def request_of(words: Mapping[str, Any], pack: str) -> ContextRequest:
    """What words of a command line, or of a request, ask of a context.

    Raises `BadWord` for a word that is none or has no such value, and what methods raise.
    """
    kinds = context_words()
    for word in ("ctx", "store", "pack"):  # which the server gives apart, or not at all
        del kinds[word]
    if unknown := next((word for word in words if word not in kinds), ""):
        raise BadWord(f"{unknown!r:.60} says nothing about reading: expected {', '.join(kinds)}")
    given = {}
    for word, value in words.items():
        try:
            given[word] = kinds[word](value)
        except WrongValue as wrong:
            raise BadWord(str(wrong.within(word))) from wrong
    return ContextRequest.of({**given, "pack": pack or None})
