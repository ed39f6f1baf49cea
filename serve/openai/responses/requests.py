"""Items and tools of /v1/responses in the engine's terms."""

from __future__ import annotations

from typing import Any

from ....runtime.chat.openai import messages as forms
from ....runtime.chat.openai.messages import ROLES
from ....runtime.chat.openai.tools import Tools
from ....runtime.chat.replies import call_of
from ....runtime.serving.prompt import Chat
from ...service import Service
from ...wire.errors import ApiError, invalid
from ..requests import effort_words
from .tools import flat_name, tools_of
from .types import Item, ResponsesRequest

_ANSWERS = ("reasoning", "function_call")


def conversation(service: Service, body: ResponsesRequest) -> tuple[Chat, Tools]:
    """What is asked, and the tools of it."""
    _check_stateless(body)
    tools = tools_of(service, body)
    messages = [forms.message("system", body.instructions)] if body.instructions else []
    items = [Item(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    answer: dict[str, Any] | None = None
    for i, item in enumerate(items):
        path = f"input[{i}]"
        if item.type in _ANSWERS or item.role == "assistant":
            # One answer is several items here: its reasoning, its text, its calls.
            answer = answer or {"role": "assistant", "content": ""}
            _add(answer, item, path)
            continue
        if answer is not None:
            messages.append(answer)
            answer = None
        messages.append(_message(item, path))
    if answer is not None:
        messages.append(answer)
    effort = effort_words(body.reasoning.effort if body.reasoning else None)
    extra = {**effort, **(body.chat_template_kwargs or {})}
    return Chat.of(messages if items else [], tools.offered, extra, "input"), tools


def _check_stateless(body: ResponsesRequest) -> None:
    if body.previous_response_id is not None:
        raise invalid(
            "previous_response_id",
            body.previous_response_id,
            "none: no answers are kept here, send all items as input",
        )
    if body.background:
        raise invalid("background", True, "false: no answers are kept here")


def _add(answer: dict[str, Any], item: Item, path: str) -> None:
    """Add an item to the answer that it is a part of."""
    if item.type == "reasoning":
        parts = item.content if isinstance(item.content, list) else item.summary
        text = "\n".join(part.get("text") or "" for part in parts or ())
        if text:
            answer["reasoning_content"] = text
    elif item.type == "function_call":
        if not item.name:
            raise ApiError(400, f"{path}.name is missing, expected a tool's", f"{path}.name")
        name = flat_name(item.namespace, item.name)
        call = call_of(item.call_id or "", name, item.arguments or "")
        answer.setdefault("tool_calls", []).append(call)
    else:
        answer["content"] += forms.text_of(item.content, f"{path}.content")


def _message(item: Item, path: str) -> dict[str, Any]:
    if item.type == "function_call_output":
        text = forms.text_of(item.output, f"{path}.output")
        return forms.result(text, item.call_id or "", "")
    if item.type != "message":
        kinds = "message, reasoning, function_call, function_call_output"
        raise invalid(f"{path}.type", item.type, f"one of {kinds}")
    if item.role not in ROLES:
        roles = ", ".join((*ROLES, "assistant"))
        raise invalid(f"{path}.role", item.role, f"one of {roles}")
    return forms.message(ROLES[item.role], forms.text_of(item.content, f"{path}.content"))
