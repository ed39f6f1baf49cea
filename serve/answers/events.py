"""What an answer is made of, in the order in which it comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ...runtime.serving.protocol import Done, Logprob, Progress


@dataclass(frozen=True)
class TextPiece:
    text: str


@dataclass(frozen=True)
class ReasoningPiece:
    text: str


@dataclass(frozen=True)
class CallBegins:
    """The call with this number among those of the answer."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A piece of the JSON text of a call's arguments."""

    index: int
    piece: str


@dataclass(frozen=True)
class CallEnds:
    index: int


@dataclass(frozen=True)
class Logprobs:
    """Of the tokens of the events that follow."""

    tokens: list[Logprob]


ParsedEvent: TypeAlias = TextPiece | ReasoningPiece | CallBegins | CallArguments | CallEnds
Event: TypeAlias = Progress | Logprobs | ParsedEvent | Done
