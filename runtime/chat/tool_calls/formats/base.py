"""What every format has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial

from ..lark import Rules
from ..reading import Reading
from ..source import MalformedCall, Steps
from ..tools import Tools


class Format(ABC):
    """One way to write calls. markers: texts that begin one, anywhere in an answer."""

    markers: tuple[str, ...] = ()

    @classmethod
    @abstractmethod
    def of(cls, template: str) -> Format | None:
        """The format, if the template is of a model that writes it."""

    def answer(self, reading: Reading) -> Steps[None]:
        """Read a whole answer behind its reasoning."""
        yield from self.begin(reading)
        while self.markers and (marker := (yield from reading.prose_until(self.markers))):
            yield from reading.attempt(partial(self.read, reading, marker), marker)
        yield from reading.prose_until(())

    def begin(self, reading: Reading) -> Steps[None]:
        """Read calls that stand at the start of an answer without a marker."""
        yield from ()

    def read(self, reading: Reading, marker: str) -> Steps[None]:
        """Read a call behind its marker; `MalformedCall` where none stands here, as always in a
        format without markers."""
        yield from ()
        raise MalformedCall

    @abstractmethod
    def rules(self, tools: Tools) -> Rules:
        """How a call of one of the tools is written."""
