"""Keeps control tokens that people write apart from those that a chat template writes.

In a message, one private-use character replaces the text of a control token, so that no template
can cut it or join it with other text. The rendered text has the control token again, quoted. Other
letters are not checked: a template that removes letters from a message may join those around them
to a control token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from ..tokenizer import ControlTexts, Rendered
from ..tokenizer.rendered import Span
from .sandbox.errors import TemplateError

_PRIVATE_USE = (0xE000, 0xF900), (0xF0000, 0xFFFFE), (0x100000, 0x10FFFE)


class Quoting:
    """Stand-ins for the control tokens in the texts of one rendering.

    texts: all that people wrote. The beginning of a control token at the end of one is replaced,
    too. template: the source of the template, in which no stand-in may occur.
    """

    def __init__(self, control: ControlTexts, texts: Sequence[str], template: str) -> None:
        self._control = control
        self._written = control.find("\0".join(texts))
        self._find = re.compile("|".join(map(re.escape, self._written)))
        self._literals: dict[str, str] = {}
        self._stand_ins: dict[str, str] = {}
        self._free = _unused([*texts, template])

    def mask(self, text: str) -> str:
        """`text` with stand-ins."""
        if self._written:
            text = self._find.sub(lambda match: self._stand_in(match[0]), text)
        if begun := self._control.partial_length(text):
            text = text[:-begun] + self._stand_in(text[-begun:])
        return text

    def unmask(self, text: str) -> Rendered:
        """The rendered text, with the control tokens in place of their stand-ins."""
        if not self._literals:
            return Rendered(text)
        parts: list[str] = []
        quoted: list[Span] = []
        size = 0
        for part in re.split(f"([{''.join(self._literals)}])", text):
            literal = self._literals.get(part)
            parts.append(part if literal is None else literal)
            start, size = size, size + len(parts[-1])
            if literal is not None:
                quoted.append((start, size))
        return Rendered("".join(parts), quoted)

    def _stand_in(self, literal: str) -> str:
        if literal not in self._stand_ins:
            character = next(self._free, None)
            if character is None:
                raise TemplateError(
                    "chat template: the messages hold every private-use character of Unicode, and "
                    "kvarn needs one that they do not: remove some"
                )
            self._stand_ins[literal], self._literals[character] = character, literal
        return self._stand_ins[literal]


def _unused(texts: Iterable[str]) -> Iterator[str]:
    """Private-use characters that occur in none of the texts."""
    used: set[str] = set().union(*texts)
    for code in chain.from_iterable(range(start, stop) for start, stop in _PRIVATE_USE):
        if chr(code) not in used:
            yield chr(code)


def texts_in(value: Any) -> Iterator[str]:
    """All texts in plain JSON values, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from chain.from_iterable(map(texts_in, pair))
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
