"""Finds reasoning and tool calls in an answer, while it streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..service import Service
from .asking import Ask
from .events import ParsedEvent, TextPiece


class StreamParser(Protocol):
    """Takes an answer in pieces. special: it needs the texts of control tokens."""

    special: bool

    def push(self, text: str) -> Sequence[ParsedEvent]: ...

    def finish(self) -> Sequence[ParsedEvent]: ...


class Plain:
    """An answer that is all text."""

    special = False

    def push(self, text: str) -> Sequence[ParsedEvent]:
        return [TextPiece(text)] if text else []

    def finish(self) -> Sequence[ParsedEvent]:
        return []


async def parser_of(service: Service, ask: Ask) -> StreamParser:
    """The parser of answers to this conversation."""
    return Plain()
