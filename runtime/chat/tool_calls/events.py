"""What a parser says of an answer, and the list that it writes while it reads."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class TextPiece:
    """Text for the user."""

    text: str


@dataclass(frozen=True)
class ReasoningPiece:
    """Text that the model wrote for itself."""

    text: str


@dataclass(frozen=True)
class CallBegins:
    """A call of a tool; index counts the calls of an answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """The next part of a call's arguments, which are one JSON object as text."""

    index: int
    piece: str


@dataclass(frozen=True)
class CallEnds:
    """The arguments are a whole JSON object. An answer that ends early leaves a call without it."""

    index: int


Event: TypeAlias = TextPiece | ReasoningPiece | CallBegins | CallArguments | CallEnds


def new_id() -> str:
    """Nine letters and digits, as Mistral's templates want them; others take any text."""
    return secrets.token_hex(5)[:9]


class Writer:
    """Events in their order; pieces of one kind that follow each other are one event."""

    def __init__(self, new_id: Callable[[], str] = new_id) -> None:
        self._new_id = new_id
        self._events: list[Event] = []
        self._make: Callable[[str], Event] = TextPiece
        self._pieces: list[str] = []
        self.n_calls = 0
        self.is_open = False
        """Whether a call has begun and not ended."""

    def text(self, piece: str) -> None:
        self._add(TextPiece, piece)

    def reasoning(self, piece: str) -> None:
        self._add(ReasoningPiece, piece)

    def begin(self, name: str, id: str = "") -> None:
        self._flush()
        self._events.append(CallBegins(self.n_calls, id or self._new_id(), name))
        self.n_calls += 1
        self.is_open = True

    def arguments(self, piece: str) -> None:
        self._add(self._call_arguments, piece)

    def end(self) -> None:
        self._flush()
        self._events.append(CallEnds(self.n_calls - 1))
        self.is_open = False

    def take(self) -> list[Event]:
        """The events since the last call."""
        self._flush()
        events, self._events = self._events, []
        return events

    def _call_arguments(self, piece: str) -> CallArguments:
        return CallArguments(self.n_calls - 1, piece)

    def _add(self, make: Callable[[str], Event], piece: str) -> None:
        if make != self._make:
            self._flush()
            self._make = make
        if piece:
            self._pieces.append(piece)

    def _flush(self) -> None:
        if text := "".join(self._pieces):
            self._events.append(self._make(text))
        self._pieces.clear()
