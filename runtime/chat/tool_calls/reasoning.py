"""What a model writes for itself before it answers."""

from __future__ import annotations

from dataclasses import dataclass

from .reading import Prose, Reading
from .source import Steps

_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<seed:think>", "</seed:think>"),
)


@dataclass(frozen=True)
class Reasoning:
    """The texts that begin and end reasoning. is_open: the prompt has already begun it."""

    opens: str
    closes: str
    is_open: bool

    @classmethod
    def of(cls, template: str, prompt_end: str) -> Reasoning | None:
        """The reasoning of a template's model; None where it has none."""
        for opens, closes in _TAGS:
            if opens in template or closes in template:
                return cls(opens, closes, prompt_end.rstrip().endswith(opens))
        return None

    def read(self, reading: Reading) -> Steps[None]:
        """Read the reasoning at the start of an answer, if some stands here."""
        source = reading.source
        source.mark()
        yield from source.space()
        begins = yield from source.literal(self.opens)
        if not begins:
            source.rewind()
            if not self.is_open:
                return
        source.unmark()
        prose = Prose(reading.writer.reasoning)
        prose.skips = True
        if (yield from source.until((self.closes,), prose)):
            reading.prose.drop()

    def rules(self) -> list[str]:
        """Lark rules for `reasoning`."""
        lines = [f'thought: %until "{self.closes}"']
        if self.is_open:
            return ["reasoning: thought", *lines]
        return [
            "reasoning: (opens_thought thought)?",
            f'opens_thought: %mark "{self.opens}"',
            *lines,
        ]
