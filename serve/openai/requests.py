"""OpenAI's messages, tools and formats in the engine's terms."""

from __future__ import annotations

from typing import Any

from ...runtime.chat.replies import call_of
from ...runtime.sampling.constraints.form import Form
from ...runtime.serving.prompt import Chat
from ..answers import messages as forms
from ..answers.fields import Constrained, constraint_of, schema_constraint
from ..answers.messages import chat_of
from ..answers.tools import Choice, Tools, function, named, skipped
from ..service import Service
from ..wire.errors import ApiError, invalid
from .types import ChatRequest, Message, NamedChoice, ResponseFormat, Tool

ROLES = {"system": "system", "developer": "system", "user": "user"}
MOST_ANSWERS = 64
MOST_TOP = 20


def conversation(service: Service, body: ChatRequest) -> tuple[Chat, Tools]:
    """What is asked, and the tools of it."""
    tools = tools_of(service, body)
    extra = {**effort_words(body.reasoning_effort), **(body.chat_template_kwargs or {})}
    return chat_of(messages_of(body.messages), tools.offered, extra), tools


def messages_of(messages: list[Message]) -> list[dict[str, Any]]:
    """The messages. Raises `ApiError` 400 for unknown roles."""
    return [_message(one, f"messages[{i}]") for i, one in enumerate(messages)]


def _message(one: Message, path: str) -> dict[str, Any]:
    text = forms.text_of(one.content, f"{path}.content")
    if one.content is None and one.role in (*ROLES, "tool", "function"):
        field = f"{path}.content"
        raise ApiError(400, f"{field} is missing, expected a text, or a list of parts", field)
    if one.role in ROLES:
        message = forms.message(ROLES[one.role], text)
        return {**message, "name": one.name} if one.name else message
    if one.role == "assistant":
        calls = [call_of(x.id, x.function.name, x.function.arguments) for x in one.tool_calls or ()]
        return forms.answer(text, one.reasoning_content, calls)
    if one.role in ("tool", "function"):
        return forms.result(text, one.tool_call_id or "", one.name or "")
    roles = ", ".join((*ROLES, "assistant", "tool"))
    raise invalid(f"{path}.role", one.role, f"one of {roles}")


def effort_words(effort: str | None) -> dict[str, Any]:
    """What templates know of how much a model is to think."""
    if effort is None:
        return {}
    if effort in ("none", "minimal"):
        return {"enable_thinking": False}
    return {"enable_thinking": True, "reasoning_effort": effort}


def tools_of(service: Service, body: ChatRequest) -> Tools:
    """The tools, and the choice among them."""
    tools = offered_tools(service, body.tools)
    choice: Choice = "auto"
    if isinstance(body.tool_choice, NamedChoice):
        choice = named(body.tool_choice.function.name, tools, "tool_choice.function.name")
    elif body.tool_choice is not None:
        choice = body.tool_choice
    return chosen_tools(tools, choice, body.parallel_tool_calls)


def chosen_tools(tools: list[dict[str, Any]], choice: Choice, parallel: bool | None) -> Tools:
    """The tools with a choice among them. Raises `ApiError` 400 where there are none to call."""
    if choice == "required" and not tools:
        raise invalid("tool_choice", choice, "tools, of which one is to be called")
    return Tools(tools, choice, one_call=parallel is False)


def offered_tools(service: Service, tools: list[Tool] | None) -> list[dict[str, Any]]:
    """The functions among the tools."""
    return [made for i, one in enumerate(tools or ()) if (made := _tool(service, i, one))]


def _tool(service: Service, i: int, tool: Tool) -> dict[str, Any] | None:
    if tool.type != "function":
        skipped(service, f"tools[{i}]", tool.type)
        return None
    if tool.function is None:
        raise ApiError(400, f"tools[{i}] has no function, expected one", f"tools[{i}].function")
    return function(tool.function.name, tool.function.description, tool.function.parameters)


def form_of(body: Constrained, wanted: ResponseFormat | None) -> Form | None:
    """What the answer must match. Raises `ApiError` 400 where two fields say it."""
    constraint = constraint_of(body)
    if wanted is None or wanted.type == "text":
        return constraint
    if constraint is not None:
        raise ApiError(400, "response_format and a grammar exclude each other: omit one", "grammar")
    nested = wanted.json_schema.schema if wanted.json_schema else None
    schema = nested or wanted.schema
    if schema is not None:
        return schema_constraint(schema)
    if wanted.type == "json_schema":
        path = "response_format.json_schema.schema"
        raise ApiError(400, f"{path} is missing, expected a JSON schema", path)
    return Form("json_object")


def n_of(n: int | None) -> int:
    """How many answers."""
    if n is not None and not 1 <= n <= MOST_ANSWERS:
        raise invalid("n", n, f"1 to {MOST_ANSWERS}")
    return n or 1


def check_lens(lens: bool | None, n_answers: int) -> None:
    """Raises `ApiError` 400 for what several answers read: they would have one field for it."""
    if lens and n_answers > 1:
        raise ApiError(400, f"lens shows one answer, the request has {n_answers}", "lens")


def top_of(n_top: int | None, field: str) -> int:
    """How many likely tokens are listed in the place of each."""
    if n_top is not None and not 0 <= n_top <= MOST_TOP:
        raise invalid(field, n_top, f"0 to {MOST_TOP}")
    return n_top or 0
