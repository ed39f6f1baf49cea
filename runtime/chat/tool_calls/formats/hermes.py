"""Hermes, Qwen 2.5 and 3: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from __future__ import annotations

from functools import partial

from ..json_text import call
from ..lark import Rules, json_calls
from ..reading import Reading
from ..source import Steps
from ..tools import Tools
from .base import Format

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class Hermes(Format):
    """JSON between tags. An object that lacks its last brace is a call as well."""

    markers = (_OPEN,)

    @classmethod
    def of(cls, template: str) -> Format | None:
        return cls() if _OPEN in template else None

    def read(self, reading: Reading, marker: str) -> Steps[None]:
        source = reading.source
        yield from source.space()
        yield from call(source, reading.writer)
        yield from source.space()
        while (yield from source.peek()) == "{":
            yield from reading.attempt(partial(call, source, reading.writer))
            yield from source.space()
        yield from source.literal(_CLOSE)

    def rules(self, tools: Tools) -> Rules:
        body, lines = json_calls(tools, "arguments")
        return Rules(_OPEN, [f'body: "\\n" {body} "\\n" close', f'close: %mark "{_CLOSE}"', *lines])
