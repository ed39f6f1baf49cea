"""Bodies that fit the description, and bodies that do not: no answer is a fault of the server. The
oracle: the OpenAPI description, from which the bodies are drawn."""

from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvarn.serve.apis import APIS
from kvarn.serve.openapi import described

from .fake_engine import FACTS, FakeEngine
from .test_tools import TEMPLATE

PATHS = [one.path for one in APIS if one.body is not None]
WORDS = ["user", "assistant", "system", "tool", "text", "function", "toy", "json_schema", "", "é\0"]
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | st.sampled_from(WORDS) | st.text(max_size=9)
KEYS = st.sampled_from(["type", "properties", "a"]) | st.text(max_size=5)


def _around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)


ANYTHING = st.recursive(LEAVES, _around, max_leaves=6)
DESCRIPTION = described(APIS)
FACTS_OF_TOOLS = replace(FACTS, chat_template=TEMPLATE)


def bodies(schema: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that fit a schema, at times with one of another kind in their place."""
    fitting = _fitting(schema, depth)
    return st.integers(0, 19).flatmap(lambda dice: ANYTHING if dice == 0 else fitting)


def _fitting(schema: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    if (reference := schema.get("$ref")) is not None:
        schema = DESCRIPTION["components"]["schemas"][reference.rpartition("/")[2]]
    if ways := schema.get("anyOf"):
        return st.one_of([bodies(way, depth) for way in ways])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "string": st.sampled_from(WORDS) | st.text(max_size=20),
        "integer": st.integers(-2, 70) | st.integers(),
        "number": st.floats(-2, 2) | st.floats(allow_nan=False, allow_infinity=False),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    kind = schema.get("type")
    if kind in kinds:
        return kinds[kind]
    if kind == "array":
        items = bodies(schema.get("items", {}), depth + 1)
        return st.lists(items, max_size=0 if depth > 5 else 3)
    if kind == "object" and "properties" in schema:
        required = set(schema.get("required", ()))
        fields = {name: bodies(one, depth + 1) for name, one in schema["properties"].items()}
        needed = {name: one for name, one in fields.items() if name in required}
        optional = {name: one for name, one in fields.items() if name not in required}
        some = st.lists(st.sampled_from(sorted(optional) or [""]), max_size=4, unique=True)
        return some.flatmap(
            lambda names: st.fixed_dictionaries(
                {**needed, **{name: optional[name] for name in names if name}}
            )
        )
    return ANYTHING if kind is None else st.dictionaries(KEYS, ANYTHING, max_size=3)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=25, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_no_body_is_the_servers_fault(
    path: str, http: httpx.Client, shared_engine: FakeEngine, data: Any
) -> None:
    shared_engine.asked.clear()
    shared_engine.facts = FACTS_OF_TOOLS
    operation = DESCRIPTION["paths"][path]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    body = data.draw(bodies(schema))
    answer = http.post(path, json=body)
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        error = answer.json()["error"]
        message = error if isinstance(error, str) else error["message"]
        assert message and "\n" not in message
    else:
        assert "fault of kvarn" not in answer.text
