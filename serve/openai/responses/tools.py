"""Tools of /v1/responses: functions, and namespaces that hold some.

A namespace groups functions, as Codex sends those of its MCP servers and its own agents. Models are
told of them under one name each, NAMESPACE__FUNCTION; clients are told of calls, and tell of
them, under both names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....runtime.chat.openai.tools import Choice, Tools, chosen, function, named
from ...service import Service
from ...wire.errors import ApiError, invalid
from .types import Function, NamedChoice, ResponsesRequest, Tool

Spaces = Mapping[str, tuple[str, str]]
"""Name that models know → namespace and name, of the functions in namespaces."""
_BETWEEN = "__"


def flat_name(namespace: str | None, name: str) -> str:
    """The name under which models know a function."""
    if not namespace:
        return name
    return f"{namespace}{'' if namespace.endswith(_BETWEEN) else _BETWEEN}{name}"


def spaces_of(tools: Sequence[Tool] | None) -> Spaces:
    """The functions in namespaces."""
    return {
        flat_name(space.name, tool.name): (space.name, tool.name)
        for space in tools or ()
        for tool in space.tools or ()
        if space.type == "namespace" and space.name and tool.name
    }


def tools_of(service: Service, body: ResponsesRequest) -> Tools:
    """The tools, and the choice among them."""
    tools = list(_functions(service, body.tools or (), "tools"))
    choice: Choice | None
    if isinstance(wanted := body.tool_choice, NamedChoice):
        if wanted.type != "function":
            raise invalid("tool_choice.type", wanted.type, "function")
        name = flat_name(wanted.namespace, wanted.name or "")
        choice = named(name, tools, "tool_choice.name")
    else:
        choice = wanted
    return chosen(tools, choice, body.parallel_tool_calls)


def _functions(
    service: Service, tools: Sequence[Function], path: str, space: Tool | None = None
) -> Iterator[dict[str, Any]]:
    """The functions among tools, and those in their namespaces. space: the one that has them."""
    kinds: tuple[str, ...] = ("function", "namespace")
    prefix: str | None = None
    if space is not None:
        kinds, prefix = ("function",), space.name
    for i, tool in enumerate(tools):
        at = f"{path}[{i}]"
        if tool.type not in kinds:
            service.skip_tool(at, tool.type)
            continue
        if not tool.name:
            raise ApiError(400, f"{at}.name is missing, expected one", f"{at}.name")
        if isinstance(tool, Tool) and tool.type == "namespace":
            yield from _functions(service, tool.tools or (), f"{at}.tools", tool)
            continue
        description = tool.description
        if space is not None and i == 0 and space.description:
            # Once for all that follow.
            description = f"{space.description}\n{description or ''}".rstrip()
        yield function(flat_name(prefix, tool.name), description, tool.parameters)
