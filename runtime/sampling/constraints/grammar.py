"""A constraint as a grammar of llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ....system.extras import how_to_install
from ....system.text import one_line, shown
from ..errors import BadOption, SamplingError
from .lark import expanded, triggered

_WHITE_SPACE = r"( |\n{1,2}[ \t]{0,20})"
"""White space between JSON tokens, at most once in a place; llama.cpp's bounds."""
_NAMES = {
    "json_schema": "JSON schema",
    "json_object": "JSON object",
    "gbnf": "GBNF grammar",
    "lark": "Lark grammar",
}
"""Kind of a constraint → its name in messages, where that is another."""
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|.)", re.DOTALL)
_BAD_REGEX = re.compile(r"regex parse error:\n +([^\n]*)\n[ ^]*\nerror: ([^\n]*)")
"""Of Rust's crate regex: the expression, a line that points into it, what is wrong with it."""
_STATE = "<state>"
"""What follows it in a message describes llguidance's parser, and repeats the grammar."""
_NO_TEXT = "NoExtensionBias"
"""llguidance's word where no token may begin an answer, nor may it be empty."""
_GBNF_SPECIAL = '"\\[]'


@lru_cache(maxsize=256)
def check(kind: str, value: str, trigger: tuple[str, ...], after: str) -> None:
    """Raises `SamplingError` where llguidance refuses a constraint's grammar."""
    matcher = _matcher_class()
    if message := matcher.validate_grammar(grammar_of(kind, value, trigger, after, {})):
        raise refused(kind, message)


def grammar_of(
    kind: str, value: str, trigger: tuple[str, ...], after: str, control: Mapping[str, int]
) -> str:
    """The grammar of a `Constraint`'s fields, in llguidance's JSON. control: control tokens by
    their spelling."""
    body = _body(kind, value, control)
    if not trigger and not after:
        return json.dumps({"grammars": [body]})
    if trigger:
        lark = triggered(trigger, "body", control)
    else:
        lark = expanded(f"start: head @body\nhead: %until {json.dumps(after)}", control)
    return json.dumps({"grammars": [{"lark_grammar": lark}, {**body, "name": "body"}]})


def refused(kind: str, message: str) -> BadOption:
    """The error for a constraint that llguidance refuses, in one line."""
    message = message.partition(_STATE)[0].strip()
    if match := _BAD_REGEX.search(message):
        expression, fault = match.groups()
        text = fault if kind == "regex" else f"regex {shown(expression)}: {fault}"
    else:
        lines = [line.strip() for line in message.splitlines()]
        told = [line for line in lines if line and not re.match(r"\d+ \||\^", line)]
        text = re.sub(r"^(at )?\d+\(\d+\): ", "", " ".join(told))
        text = "no text matches it" if text == _NO_TEXT else text
    return BadOption(
        f"sampling: the {_NAMES.get(kind, kind)} cannot be used: {one_line(text, 300)}"
    )


def _body(kind: str, value: str, control: Mapping[str, int]) -> dict[str, Any]:
    """The grammar of one match."""
    if kind == "json_schema":
        return {"json_schema": _schema(value)}
    if kind == "json_object":
        return {"json_schema": _bounded({"type": "object"})}
    if kind == "regex":
        return dict(json.loads(_matcher_class().grammar_from_regex(value))["grammars"][0])
    return {"lark_grammar": _from_gbnf(value) if kind == "gbnf" else expanded(value, control)}


def _schema(text: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refused("json_schema", f"it is not JSON: {error}") from error
    if isinstance(schema, bool):
        schema = {"allOf": [schema]}
    if not isinstance(schema, dict):
        raise refused("json_schema", f"it is {type(schema).__name__}, expected an object")
    return _bounded(schema)


def _bounded(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "x-guidance": {"whitespace_pattern": _WHITE_SPACE}}


def _from_gbnf(text: str) -> str:
    """llguidance's converter, which takes characters as they are but not all escapes of them."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    def plain(match: re.Match[str]) -> str:
        digits = match[1] or match[2] or match[3]
        if digits is None or int(digits, 16) > 0x10FFFF:
            return match[0]
        character = chr(int(digits, 16))
        if character in _GBNF_SPECIAL:
            return "\\" + character
        return character if character.isprintable() else match[0]

    try:
        return str(gbnf_to_lark(_ESCAPE.sub(plain, text)))
    except Exception as error:  # of the converter's own kind, or none in particular
        raise refused("gbnf", str(error)) from error


def _matcher_class() -> Any:
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise SamplingError(
            "sampling: constraints (JSON schemas, grammars, regular expressions) need llguidance: "
            + how_to_install("serve")
        ) from error
    return LLMatcher
