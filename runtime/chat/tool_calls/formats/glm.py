"""GLM 4.x: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…</tool_call>`."""

from __future__ import annotations

from dataclasses import dataclass

from ..json_text import dumped
from ..lark import Rules, parameter_calls
from ..reading import Reading
from ..source import MalformedCall, Steps
from ..tools import Tools
from .base import Format
from .qwen_xml import parameter

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY = "<arg_key>"


@dataclass(frozen=True)
class Glm(Format):
    """Parameters as bare text; between the parts stand line breaks, or nothing."""

    between: str = "\n"
    markers = (_OPEN,)

    @classmethod
    def of(cls, template: str) -> Format | None:
        if _KEY not in template or _OPEN not in template:
            return None
        return cls("" if "}" + _KEY in template else "\n")

    def read(self, reading: Reading, marker: str) -> Steps[None]:
        source, writer = reading.source, reading.writer
        parts: list[str] = []
        end = yield from source.until(("\n", _KEY, _CLOSE), parts.append, whole=True)
        name = "".join(parts).strip()
        if not name or set(name) & set('{"<'):
            raise MalformedCall
        if end == "\n":
            end = yield from self._next(reading)
        writer.begin(name)
        before = "{"
        while end == _KEY:
            parts = []
            yield from source.until(("</arg_key>",), parts.append, whole=True)
            key = "".join(parts).strip()
            yield from source.space()
            yield from source.expect("<arg_value>")
            writer.arguments(f"{before}{dumped(key)}: ")
            yield from parameter(reading, reading.tools.types(name, key), ("</arg_value>",))
            before = ", "
            end = yield from self._next(reading)
        writer.arguments("}" if before == ", " else "{}")
        writer.end()

    def _next(self, reading: Reading) -> Steps[str]:
        yield from reading.source.space()
        if (yield from reading.source.literal(_KEY)):
            return _KEY
        yield from reading.source.expect(_CLOSE)
        return _CLOSE

    def rules(self, tools: Tools) -> Rules:
        before = f"{_KEY}%s</arg_key>{self.between}<arg_value>"
        after = "</arg_value>" + self.between
        calls = parameter_calls(tools, "%s" + self.between, before, after)
        return Rules(_OPEN, [f'close: %mark "{_CLOSE}"', *calls])
