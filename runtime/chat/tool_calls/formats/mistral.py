"""Mistral: `[TOOL_CALLS]` before an array of objects, or before each `NAME[ARGS]{…}`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from ..json_text import arguments, call
from ..lark import Rules, json_calls, named_calls
from ..reading import Reading
from ..source import MalformedCall, Steps
from ..tools import Tools
from .base import Format

_MARK, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME = re.compile(r"[^\s\[\]{}\"<>,]*")


@dataclass(frozen=True)
class Mistral(Format):
    """named: calls are written as `NAME[ARGS]{…}`; has_id: with `[CALL_ID]ID` after the name."""

    named: bool = False
    has_id: bool = False
    markers = (_MARK,)

    @classmethod
    def of(cls, template: str) -> Format | None:
        return cls(_ARGS in template, _ID in template) if _MARK in template else None

    def read(self, reading: Reading, marker: str) -> Steps[None]:
        source, writer = reading.source, reading.writer
        yield from source.space()
        if (yield from source.literal("[")):
            yield from self._array(reading)
            return
        name: list[str] = []
        id: list[str] = []
        yield from source.run(_NAME, name.append)
        yield from source.space()
        if (yield from source.literal(_ID)):
            yield from source.run(_NAME, id.append)
            yield from source.space()
        yield from source.literal(_ARGS)
        yield from source.space()
        if not "".join(name) or (yield from source.peek()) != "{":
            raise MalformedCall
        writer.begin("".join(name), "".join(id))
        yield from arguments(source, writer.arguments)
        writer.end()

    def _array(self, reading: Reading) -> Steps[None]:
        source = reading.source
        yield from source.space()
        yield from call(source, reading.writer)
        yield from source.space()
        while (yield from source.literal(",")):
            yield from source.space()
            yield from reading.attempt(partial(call, source, reading.writer))
            yield from source.space()
        yield from source.literal("]")

    def rules(self, tools: Tools) -> Rules:
        if not self.named:
            body, lines = json_calls(tools, "arguments", {"id": {"pattern": "^[a-zA-Z0-9]{9}$"}})
            return Rules(_MARK, [f'body: "[" {body} (", " {body})* "]"', *lines], repeats=False)
        lines = [f'args: %mark "{_ARGS}"']
        if self.has_id:
            lines += ["args_after: id_mark ID args", f'id_mark: %mark "{_ID}"']
            lines += ["ID: /[a-zA-Z0-9]{9}/"]
        after = "args_after" if self.has_id else "args"
        return Rules(_MARK, [*lines, *named_calls(tools, after)])
