"""Grammars of calls in Lark, as llguidance and `runtime/sampling/constraints` read it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from .tools import Schema, Tools

_WHITE_SPACE = r"( |\n{1,2}[ \t]{0,20})"
_DEFINITIONS = ("$defs", "definitions")


@dataclass(frozen=True)
class Rules:
    """How a call is written. opens: the text before it, which may be ""; lines: rules, among them
    `body`, what follows; repeats: whether `opens` and `body` may follow each other again."""

    opens: str
    lines: list[str] = field(default_factory=list)
    repeats: bool = True


def json_rule(name: str, schema: Schema) -> str:
    """A rule for JSON of a schema. What llguidance does not know of it is not enforced."""
    options = {"whitespace_pattern": _WHITE_SPACE, "lenient": True}
    return f"{name}: %json {json.dumps({**schema, 'x-guidance': options})}"


def json_calls(tools: Tools, key: str, more: dict[str, Any] | None = None) -> tuple[str, list[str]]:
    """A choice of `{"name": …, key: {…}}` for each tool, and its rules. more: further members."""
    names, lines = [], []
    for i, (name, schema) in enumerate(tools.schemas.items()):
        names.append(f"object_{i}")
        lines.append(json_rule(f"object_{i}", call_schema(name, schema, key, more)))
    return f"({' | '.join(names)})", lines


def named_calls(tools: Tools, between: str) -> list[str]:
    """The rule `body` of a tool's name, `between` and its arguments as JSON, and its rules."""
    bodies, lines = [], []
    for i, (name, schema) in enumerate(tools.schemas.items()):
        bodies.append(f"{json.dumps(name)} {between} object_{i}")
        lines.append(json_rule(f"object_{i}", schema))
    return [f"body: {' | '.join(bodies)}", *lines]


def call_schema(name: str, schema: Schema, key: str, more: dict[str, Any] | None = None) -> Schema:
    """The schema of a call as a JSON object."""
    plain = {one: value for one, value in schema.items() if one not in _DEFINITIONS}
    return {
        "type": "object",
        "properties": {"name": {"const": name}, key: plain, **(more or {})},
        "required": ["name", key],
        "additionalProperties": False,
        **definitions(schema),
    }


def definitions(schema: Schema) -> Schema:
    """What references of a schema name, which stands at its root."""
    return {key: schema[key] for key in _DEFINITIONS if key in schema}


def parameter_calls(tools: Tools, head: str, before: str, after: str) -> list[str]:
    """The rule `body` of a tool's name in `head`, parameters as bare text and `close`, and its
    rules. before, after: see `parameter_rules`."""
    lines, bodies = [], []
    for i, (name, schema) in enumerate(tools.schemas.items()):
        names, more = parameter_rules(i, schema, before, after)
        bodies.append(f"body_{i}")
        lines += [f"body_{i}: {json.dumps(head % name)} {' '.join(names)} close", *more]
    return [f"body: {' | '.join(bodies)}", *lines]


def parameter_rules(
    index: int, schema: Schema, before: str, after: str
) -> tuple[list[str], list[str]]:
    """Rules for parameters as bare text, in the schema's order: their names, optional ones with
    `?`, and their lines. before: the text before a value, with %s for the key."""
    properties = schema.get("properties")
    required = schema.get("required", ())
    tools = Tools([{"name": "", "parameters": schema}])
    names, lines = [], []
    for i, (key, one) in enumerate(properties.items() if isinstance(properties, dict) else ()):
        name = f"parameter_{index}_{i}"
        head = json.dumps(before % key)
        names.append(name if key in required else f"{name}?")
        if "string" in tools.types("", key) or not isinstance(one, dict):
            lines.append(f"{name}: {head} value_{index}_{i}")
            lines.append(f"value_{index}_{i}: %until {json.dumps(after)}")
        else:
            lines.append(f"{name}: {head} value_{index}_{i} {json.dumps(after)}")
            lines.append(json_rule(f"value_{index}_{i}", {**one, **definitions(schema)}))
    return names, lines
