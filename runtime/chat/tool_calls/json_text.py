"""JSON texts while they come: values that are checked and passed on, and calls as objects."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from .events import Writer
from .source import MalformedCall, Sink, Source, Steps

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SCALAR = re.compile(r"[^\s,\]}\"{\[:;]*")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DEEPEST = 64
ARGUMENTS = ("arguments", "parameters")


def escaped(text: str) -> str:
    """A text as it stands in a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def dumped(value: Any) -> str:
    """A value as JSON."""
    return json.dumps(value, ensure_ascii=False)


def parsed(text: str) -> Any:
    """The value of a JSON text; ValueError or RecursionError for another one, and for NaN and
    infinity, which are none."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def value(source: Source, sink: Sink, depth: int = 0) -> Steps[None]:
    """Read one JSON value and pass it on; `MalformedCall` where it is none."""
    if depth > _DEEPEST:
        raise MalformedCall
    first = yield from source.peek()
    if first == '"':
        yield from string(source, sink)
    elif first == "{":
        yield from _read_container(source, sink, depth, "{", "}")
    elif first == "[":
        yield from _read_container(source, sink, depth, "[", "]")
    else:
        yield from _scalar(source, sink)


def string(source: Source, sink: Sink) -> Steps[None]:
    """Read a JSON string and pass it on as it stands."""
    yield from source.expect('"')
    sink('"')
    while True:
        yield from source.run(_PLAIN, sink)
        character = yield from source.next()
        if character == "\\":
            character += yield from source.next()
            if character[1] == "u":
                for _ in range(4):
                    character += yield from source.next()
                if not re.fullmatch("[0-9a-fA-F]{4}", character[2:]):
                    raise MalformedCall
            elif character[1] not in '"\\/bfnrt':
                raise MalformedCall
            sink(character)
        elif character == '"':
            sink('"')
            return
        else:
            raise MalformedCall


def text_of(source: Source) -> Steps[str]:
    """Read a JSON string; the text that it stands for."""
    parts: list[str] = []
    yield from string(source, parts.append)
    return str(json.loads("".join(parts)))


def _scalar(source: Source, sink: Sink) -> Steps[None]:
    parts: list[str] = []
    yield from source.run(_SCALAR, parts.append)
    text = "".join(parts)
    if text not in ("true", "false", "null") and not _NUMBER.fullmatch(text):
        raise MalformedCall
    sink(text)


def _read_container(source: Source, sink: Sink, depth: int, opens: str, closes: str) -> Steps[None]:
    """Read an array or an object, from its first character to its last."""
    yield from source.expect(opens)
    sink(opens)
    yield from source.space(sink)
    if (yield from source.literal(closes)):
        sink(closes)
        return
    character = ","
    while character == ",":
        if opens == "{":
            yield from string(source, sink)
            yield from _colon(source, sink)
        yield from value(source, sink, depth + 1)
        yield from source.space(sink)
        character = yield from source.next()
        if character not in ("," + closes):
            raise MalformedCall
        sink(character)
        if character == ",":
            yield from source.space(sink)


def _colon(source: Source, sink: Sink = len) -> Steps[None]:
    yield from source.space(sink)
    yield from source.expect(":")
    sink(":")
    yield from source.space(sink)


def arguments(source: Source, sink: Sink) -> Steps[None]:
    """Read the arguments of a call: an object, a string that holds one, or null."""
    first = yield from source.peek()
    if first == "{":
        yield from value(source, sink)
        return
    if first == '"':
        text = yield from text_of(source)
        try:
            values = json.loads(text or "{}")
        except (ValueError, RecursionError):
            raise MalformedCall from None
        if not isinstance(values, dict):
            raise MalformedCall
        sink(dumped(values))
        return
    yield from source.expect("null")
    sink("{}")


def call(source: Source, writer: Writer, names: Collection[str] | None = None) -> Steps[None]:
    """Read a call `{"name": …, "arguments": {…}}`, with `parameters` for `arguments`.

    names: where given, an object that does not begin as the call of one of them is `MalformedCall`.
    A name that comes after the arguments holds them back.
    """
    yield from source.expect("{")
    yield from source.space()
    name, id, early, is_done = "", "", "", False
    while True:
        key = yield from text_of(source)
        if names is not None and not name and key not in ("name", "type", "id", *ARGUMENTS):
            raise MalformedCall
        yield from _colon(source)
        if key == "name":
            name = yield from text_of(source)
            if not name or (names is not None and name not in names):
                raise MalformedCall
        elif key in ARGUMENTS and name and not is_done:
            writer.begin(name, id)
            yield from arguments(source, writer.arguments)
            writer.end()
            is_done = True
        elif key in ARGUMENTS:
            parts: list[str] = []
            yield from arguments(source, parts.append)
            early = "".join(parts)
        else:
            parts = []
            yield from value(source, parts.append)
            if key == "id" and parts[0] == '"':
                id = str(json.loads("".join(parts)))
        yield from source.space()
        if is_done and (yield from source.peek()) not in ("}", ","):
            return  # a weak model left out the last brace
        character = yield from source.next()
        if character == "}":
            break
        if character != ",":
            raise MalformedCall
        yield from source.space()
    if not name:
        raise MalformedCall
    if not is_done:
        write_call(writer, name, early or "{}", id)


def write_call(writer: Writer, name: str, arguments: str, id: str = "") -> None:
    """Write a call whose arguments are known."""
    writer.begin(name, id)
    writer.arguments(arguments)
    writer.end()
