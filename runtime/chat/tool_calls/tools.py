"""Tools as requests describe them, and values of their parameters that came as bare text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from .json_text import dumped, parsed

Schema: TypeAlias = dict[str, Any]
_TYPES = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "object": dict,
    "array": list,
    "null": type(None),
}


class Tools:
    """The parameters' schemas by the names of the tools, in OpenAI's form."""

    def __init__(self, tools: Iterable[Mapping[str, Any]] | None) -> None:
        self.schemas: dict[str, Schema] = {}
        for tool in tools or ():
            function = tool.get("function", tool)
            schema = function.get("parameters")
            self.schemas[str(function.get("name", ""))] = (
                schema if isinstance(schema, dict) else {"type": "object"}
            )

    def types(self, tool: str, parameter: str) -> frozenset[str]:
        """The JSON types that a parameter may have; "string" alone where nothing is said."""
        schema = self.schemas.get(tool, {})
        properties = schema.get("properties")
        one = properties.get(parameter) if isinstance(properties, dict) else None
        return frozenset(_types(one, schema, 0)) or frozenset(["string"])


def _types(schema: Any, root: Schema, depth: int) -> set[str]:
    if not isinstance(schema, dict) or depth > 8:
        return set()
    given = schema.get("type")
    if isinstance(given, str):
        return {given}
    if isinstance(given, list):
        return {one for one in given if isinstance(one, str)}
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return {_type(one) for one in values}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for part in reference[2:].split("/"):
            target = target.get(part) if isinstance(target, dict) else None
        return _types(target, root, depth + 1)
    ways = [way for key in ("anyOf", "oneOf", "allOf") for way in _list(schema.get(key))]
    return {one for way in ways for one in _types(way, root, depth + 1)}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _type(value: Any) -> str:
    return next(name for name, kind in _TYPES.items() if isinstance(value, kind))  # type: ignore[arg-type]


def converted(text: str, types: frozenset[str]) -> str:
    """A parameter's text as JSON: a value of one of the types, else a string."""
    try:
        value = parsed(text.strip())
    except (ValueError, RecursionError):
        value = {"true": True, "false": False, "none": None}.get(text.strip().lower(), text)
    fits = any(_fits(value, name) for name in types - {"string"})
    return dumped(value if fits else text)


def _fits(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return False
    kind: Any = _TYPES.get(name, ())
    return isinstance(value, kind)
