"""Chooses a format by a chat template, and reads an answer while it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from .events import Event, TextPiece, Writer, new_id
from .formats.base import Format
from .formats.gemma import Gemma
from .formats.glm import Glm
from .formats.harmony import Harmony
from .formats.hermes import Hermes
from .formats.llama import Llama, PlainObjects
from .formats.mistral import Mistral
from .formats.qwen_xml import QwenXml
from .reading import Reading
from .reasoning import Reasoning
from .source import Steps
from .tools import Tools

_FORMATS: tuple[type[Format], ...] = (
    Harmony,
    Gemma,
    Glm,
    QwenXml,
    Mistral,
    Hermes,
    Llama,
    PlainObjects,
)
"""In the order in which they are tried: the first that knows the template."""


def format_of(template: str) -> Format:
    """How a template's model writes calls; `PlainObjects` where the template does not say."""
    known = (one.of(template) for one in _FORMATS)
    return next(one for one in known if one is not None)


class Parser(Protocol):
    """Takes an answer in pieces. special: it needs the texts of control tokens."""

    special: bool

    def push(self, text: str) -> Sequence[Event]: ...
    def finish(self) -> Sequence[Event]: ...


class Plain:
    """Reads an answer that is all text."""

    special = False

    def push(self, text: str) -> Sequence[Event]:
        return [TextPiece(text)] if text else []

    def finish(self) -> Sequence[Event]:
        return []


class StreamParser:
    """Reads one answer: `push` each piece of its text, then `finish`.

    Events do not depend on how it is cut, but for where pieces are. White space around calls and
    reasoning is left out. What looks like a call and is none is text. special: the text has to
    spell out control tokens.
    """

    def __init__(
        self,
        format: Format | None,
        tools: Tools,
        reasoning: Reasoning | None,
        new_id: Callable[[], str] = new_id,
    ) -> None:
        self.special = format is not None or reasoning is not None
        self._writer = Writer(new_id)
        self._reading = Reading(tools, self._writer)
        self._steps = self._answer(format, reasoning)
        self._is_done = False

    def push(self, text: str) -> list[Event]:
        """The events that the next piece of the answer completes."""
        self._reading.source.add(text)
        return self._advance()

    def finish(self) -> list[Event]:
        """The answer has ended: what was held back."""
        self._reading.source.ended = True
        return self._advance()

    def _advance(self) -> list[Event]:
        if not self._is_done:
            try:
                next(self._steps)
            except StopIteration:
                self._is_done = True
        return self._writer.take()

    def _answer(self, format: Format | None, reasoning: Reasoning | None) -> Steps[None]:
        reading = self._reading
        if reasoning is not None:
            yield from reasoning.read(reading)
        if format is None:
            yield from reading.prose_until(())
        else:
            yield from format.answer(reading)
        reading.prose.flush()


def parser_for(
    template: str,
    tools: Iterable[Mapping[str, Any]] | None,
    prompt_end: str = "",
    new_id: Callable[[], str] = new_id,
) -> StreamParser:
    """The parser for answers of a model.

    template: the source of its chat template. tools: those of the request, in OpenAI's form; None
    or none: calls are text. prompt_end: the last characters of the rendered prompt, which may open
    the reasoning. new_id: makes ids of calls.
    """
    known, format = Tools(tools), format_of(template)
    if isinstance(format, Harmony):
        return StreamParser(format, known, None, new_id)
    return StreamParser(
        format if known.schemas else None, known, Reasoning.of(template, prompt_end), new_id
    )
