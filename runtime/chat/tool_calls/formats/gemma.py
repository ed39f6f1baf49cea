"""Gemma 4 and FunctionGemma: `call:NAME{KEY:VALUE,…}` between tags, strings between marks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ..json_text import dumped, escaped, string
from ..lark import Rules
from ..reading import Reading
from ..source import MalformedCall, Sink, Steps
from ..tools import Tools, converted
from .base import Format

_ANY = frozenset(["boolean", "number", "integer", "null"])
_SCALAR = re.compile(r"[^,{}\[\]<\n\"]*")
_DEEPEST = 64


@dataclass(frozen=True)
class Gemma(Format):
    """opens, closes: the tags; quote: the mark before and after a string."""

    opens: str
    closes: str
    quote: str

    @property
    def markers(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.opens,)

    @classmethod
    def of(cls, template: str) -> Format | None:
        if "<|tool_call>" in template:
            return cls("<|tool_call>", "<tool_call|>", '<|"|>')
        if "<start_function_call>" in template:
            return cls("<start_function_call>", "<end_function_call>", "<escape>")
        return None

    def read(self, reading: Reading, marker: str) -> Steps[None]:
        source, writer = reading.source, reading.writer
        yield from source.space()
        yield from source.expect("call:")
        parts: list[str] = []
        end = yield from source.until(("{", "\n", "<"), parts.append)
        name = "".join(parts).strip()
        if end != "{" or not name:
            raise MalformedCall
        writer.begin(name)
        yield from self._members(reading, writer.arguments, 0)
        writer.end()
        yield from source.space()
        yield from source.literal(self.closes)

    def _value(self, reading: Reading, sink: Sink, depth: int) -> Steps[None]:
        source = reading.source
        if depth > _DEEPEST:
            raise MalformedCall
        if (yield from source.literal(self.quote)):
            sink('"')
            ends = (self.quote,)
            yield from source.until(ends, lambda piece: sink(escaped(piece)), whole=True)
            sink('"')
        elif (yield from source.literal("{")):
            yield from self._members(reading, sink, depth)
        elif (yield from source.literal("[")):
            yield from self._items(reading, sink, depth)
        elif (yield from source.peek()) == '"':
            yield from string(source, sink)
        else:
            parts: list[str] = []
            yield from source.run(_SCALAR, parts.append)
            if not (text := "".join(parts).strip()):
                raise MalformedCall
            sink(converted(text, _ANY))

    def _members(self, reading: Reading, sink: Sink, depth: int) -> Steps[None]:
        """The rest of an object."""
        source = reading.source
        yield from source.space()
        if (yield from source.literal("}")):
            sink("{}")
            return
        before = "{"
        while True:
            key: list[str] = []
            yield from source.until((":",), key.append, whole=True)
            name = "".join(key).strip().removeprefix(self.quote).removesuffix(self.quote)
            sink(f"{before}{dumped(name)}: ")
            yield from source.space()
            yield from self._value(reading, sink, depth + 1)
            yield from source.space()
            if (yield from source.literal("}")):
                sink("}")
                return
            yield from source.expect(",")
            yield from source.space()
            before = ", "

    def _items(self, reading: Reading, sink: Sink, depth: int) -> Steps[None]:
        """The rest of an array."""
        source = reading.source
        sink("[")
        yield from source.space()
        if (yield from source.literal("]")):
            sink("]")
            return
        while True:
            yield from self._value(reading, sink, depth + 1)
            yield from source.space()
            if (yield from source.literal("]")):
                sink("]")
                return
            yield from source.expect(",")
            yield from source.space()
            sink(", ")

    def rules(self, tools: Tools) -> Rules:
        quote = json.dumps(self.quote)
        lines = [
            f"close: %mark {json.dumps(self.closes)}",
            f"quote: %mark {quote}",
            f"text_end: %until {quote}",
            "text: quote text_end",
            "number: /-?(0|[1-9][0-9]{0,18})(\\.[0-9]{1,18})?/",
            "integer: /-?(0|[1-9][0-9]{0,18})/",
            'boolean: "true" | "false"',
            'null: "null"',
            'array: "[" (value ("," value)*)? "]"',
            'object: "{" (pair ("," pair)*)? "}"',
            'pair: KEY ":" value',
            "KEY: /[a-zA-Z_][a-zA-Z0-9_-]{0,63}/",
            "value: text | number | boolean | null | array | object",
        ]
        bodies = []
        for i, (name, schema) in enumerate(tools.schemas.items()):
            pairs = {key: self._pair(tools, name, key) for key in schema.get("properties", {})}
            needed = [pairs.pop(key) for key in schema.get("required", ()) if key in pairs]
            rest = f"({' | '.join(pairs.values())})" if pairs else ""
            if needed:
                inside = ' "," '.join(needed) + (f' ("," {rest})*' if rest else "")
            else:
                inside = f'({rest} ("," {rest})*)?' if rest else ""
            bodies.append(f"body_{i}")
            lines.append(f'body_{i}: {json.dumps(f"call:{name}" + "{")} {inside} "}}" close')
        return Rules(self.opens, [f"body: {' | '.join(bodies)}", *lines])

    def _pair(self, tools: Tools, tool: str, key: str) -> str:
        types = sorted("text" if one == "string" else one for one in tools.types(tool, key))
        return f"{json.dumps(key + ':')} ({' | '.join(types)})"
