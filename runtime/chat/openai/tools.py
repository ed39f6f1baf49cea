"""Tools of a request: functions, with which of them must be called, and what reads the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Required, TypedDict

from ...sampling.constraints.form import Form
from ..tool_calls import Parser, after_reasoning, constraint_for, parser_for
from .errors import RequestError, invalid

Choice = str | dict[str, Any]
"""OpenAI's `tool_choice`: "none", "auto", "required", or the function to call."""
_WORDS = ("none", "auto", "required")


class Function(TypedDict, total=False):
    name: Required[str]
    description: str | None
    parameters: dict[str, Any] | None


class Tool(TypedDict, total=False):
    """A function. Tools of other types run at OpenAI's."""

    type: str
    function: Function | None


class NamedChoice(TypedDict, total=False):
    type: Literal["function"]
    function: Required[Function]


@dataclass(frozen=True)
class Tools:
    """The tools that a model may call. one_call: no two in one answer."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    choice: Choice = "auto"
    one_call: bool = False

    @property
    def offered(self) -> list[dict[str, Any]] | None:
        """The tools that the prompt describes."""
        return None if self.choice == "none" else self.tools or None

    def beside(self, form: Form | None) -> Form | None:
        """The form of the answer that a request names, if tools leave it room.

        Raises `RequestError` where an answer would have two forms.
        """
        if form is not None and self.offered is not None:
            raise RequestError(
                "tools and a form of the answer (response_format, grammar) exclude each "
                'other: omit one, or say tool_choice "none"',
                "tools",
            )
        return form

    def reader(
        self, template: str, prompt_end: str, form: Form | None
    ) -> tuple[Parser, Form | None]:
        """What reads the answer to a prompt of this template, and what it must match: the form that
        the request names, or that of calls. prompt_end: tells whether it opens the reasoning."""
        tools = self.offered
        parser = parser_for(template, tools, prompt_end)
        if form is not None:
            return parser, after_reasoning(form, template, prompt_end)
        one_call = self.one_call
        return parser, constraint_for(template, tools, self.choice, prompt_end, one_call=one_call)


def functions_of(
    tools: Iterable[Tool] | None, skip: Callable[[str, str], None] | None = None
) -> list[dict[str, Any]]:
    """The functions among the tools. skip: gets the path and the type of each other one; None:
    raises `RequestError` for them."""
    functions = []
    for i, tool in enumerate(tools or ()):
        path, kind, called = f"tools[{i}]", tool.get("type", "function"), tool.get("function")
        if kind != "function":
            if skip is None:
                raise invalid(f"{path}.type", kind, "function")
            skip(path, kind)
        elif called is None:
            raise RequestError(f"{path} has no function, expected one", f"{path}.function")
        else:
            parameters = called.get("parameters")
            functions.append(function(called["name"], called.get("description"), parameters))
    return functions


def function(
    name: str, description: str | None, parameters: dict[str, Any] | None
) -> dict[str, Any]:
    """A tool as templates take it."""
    fields: dict[str, Any] = {"name": name}
    if description:
        fields["description"] = description
    fields["parameters"] = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": fields}


def named(name: str, tools: Sequence[dict[str, Any]], path: str) -> Choice:
    """The choice of this tool. Raises `RequestError` where it is not among the tools."""
    names = [tool["function"]["name"] for tool in tools]
    if name not in names:
        raise invalid(path, name, f"one of the tools: {', '.join(names)[:200] or 'it has none'}")
    return {"type": "function", "function": {"name": name}}


def chosen(
    tools: list[dict[str, Any]], choice: Choice | NamedChoice | None, parallel: bool | None = None
) -> Tools:
    """The tools with a choice among them; None: "auto". parallel: False for one call in an answer.

    Raises `RequestError` for a choice that is none, or where there are no tools to call.
    """
    choice = choice or "auto"
    one_call = parallel is False
    if not isinstance(choice, str):
        path = "tool_choice.function.name"
        return Tools(tools, named(choice["function"]["name"], tools, path), one_call)
    if choice not in _WORDS:
        raise invalid("tool_choice", choice, f"one of {', '.join(_WORDS)}, or a function's name")
    if choice == "required" and not tools:
        raise invalid("tool_choice", choice, "tools, of which one is to be called")
    return Tools(tools, choice, one_call)
