"""Qwen 3 Coder and 3.5: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter>…`."""

from __future__ import annotations

from ..json_text import dumped, escaped
from ..lark import Rules, parameter_calls
from ..reading import Reading
from ..source import MalformedCall, Steps
from ..tools import Tools, converted
from .base import Format

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = "<function="
_PARAMETER, _END = "<parameter=", "</parameter>"


class QwenXml(Format):
    """Parameters as bare text. A call may stand without `<tool_call>`."""

    markers = (_OPEN, _FUNCTION)

    @classmethod
    def of(cls, template: str) -> Format | None:
        return cls() if _FUNCTION in template and _PARAMETER in template else None

    def read(self, reading: Reading, marker: str) -> Steps[None]:
        source, writer = reading.source, reading.writer
        if marker == _OPEN:
            yield from source.space()
            yield from source.expect(_FUNCTION)
        name = yield from tag_name(reading)
        yield from source.space()
        if not (yield from source.literal(_PARAMETER)):
            yield from source.expect("</function>")
            writer.begin(name)
            writer.arguments("{}")
        else:
            writer.begin(name)
            before = "{"
            while before:
                key = yield from tag_name(reading)
                writer.arguments(f"{before}{dumped(key)}: ")
                yield from source.literal("\n")
                ends = ("\n" + _END, _END)
                yield from parameter(reading, reading.tools.types(name, key), ends)
                yield from source.space()
                before = ", " if (yield from source.literal(_PARAMETER)) else ""
            yield from source.expect("</function>")
            writer.arguments("}")
        writer.end()
        yield from source.space()
        yield from source.literal(_CLOSE)

    def rules(self, tools: Tools) -> Rules:
        lines = ['close: "</function>\\n" close_call', f'close_call: %mark "{_CLOSE}"']
        calls = parameter_calls(tools, "\n<function=%s>\n", "<parameter=%s>\n", "\n</parameter>\n")
        return Rules(_OPEN, [*lines, *calls])


def tag_name(reading: Reading) -> Steps[str]:
    """The rest of a tag such as `<function=NAME>`."""
    parts: list[str] = []
    end = yield from reading.source.until((">", "\n"), parts.append)
    name = "".join(parts).strip()
    if end != ">" or not name:
        raise MalformedCall
    return name


def parameter(reading: Reading, types: frozenset[str], ends: tuple[str, ...]) -> Steps[None]:
    """Read a parameter's text up to one of `ends`, and write it as JSON: strings as they come."""
    source, write = reading.source, reading.writer.arguments
    if types == {"string"}:
        write('"')
        yield from source.until(ends, lambda piece: write(escaped(piece)), whole=True)
        write('"')
        return
    parts: list[str] = []
    yield from source.until(ends, parts.append, whole=True)
    write(converted("".join(parts), types))
