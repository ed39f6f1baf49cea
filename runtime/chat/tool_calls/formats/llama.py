"""Llama 3.x: a bare object `{"name": …, "parameters": {…}}`, or one after `<|python_tag|>`."""

from __future__ import annotations

import ast
import re
from functools import partial

from ..json_text import call, dumped, write_call
from ..lark import Rules, json_calls
from ..reading import Reading
from ..source import MalformedCall, Steps
from ..tools import Tools
from .base import Format

_TAG = "<|python_tag|>"
_BUILT_IN = re.compile(r"\s*([\w.]+)\.call(\(.*\))\s*", re.DOTALL)


class PlainObjects(Format):
    """Objects alone: what models without a format are asked for, too. Only those that call one of
    the tools are calls. Several may follow each other, with `;` between them."""

    key = "arguments"

    @classmethod
    def of(cls, template: str) -> Format | None:
        return cls()

    def begin(self, reading: Reading) -> Steps[None]:
        source = reading.source
        while True:
            yield from source.space(reading.prose)
            if (yield from source.peek()) != "{":
                return
            known = reading.tools.schemas
            if not (yield from reading.attempt(partial(call, source, reading.writer, known))):
                return
            yield from source.space()
            yield from source.literal(";")

    def rules(self, tools: Tools) -> Rules:
        body, lines = json_calls(tools, self.key)
        return Rules("", [f"body: {body}", *lines], repeats=False)


class Llama(PlainObjects):
    """The same with `parameters`, and calls of built-in tools: `NAME.call(query="…")`."""

    key = "parameters"
    markers = (_TAG,)

    @classmethod
    def of(cls, template: str) -> Format | None:
        is_bare = '{"name": "' in template and '"parameters": ' in template
        return cls() if _TAG in template or is_bare else None

    def read(self, reading: Reading, marker: str) -> Steps[None]:
        source = reading.source
        yield from source.space()
        if (yield from source.peek()) != "{":
            parts: list[str] = []
            yield from source.until((), parts.append)
            _built_in(reading, "".join(parts))
            return
        yield from call(source, reading.writer)
        yield from source.space()
        while (yield from source.literal(";")):
            yield from source.space()
            yield from reading.attempt(partial(call, source, reading.writer))
            yield from source.space()


def _built_in(reading: Reading, text: str) -> None:
    match = _BUILT_IN.fullmatch(text)
    try:
        made = ast.parse(f"f{match[2]}", mode="eval").body if match else None
        if not match or not isinstance(made, ast.Call) or made.args:
            raise MalformedCall
        given = {str(one.arg): ast.literal_eval(one.value) for one in made.keywords}
        write_call(reading.writer, match[1], dumped(given))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise MalformedCall from None
