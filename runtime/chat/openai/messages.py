"""Messages as templates take them: `content` a text, arguments of calls as objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Required, TypedDict

from ..replies import answer, call_of
from .errors import RequestError, invalid

ROLES = {"system": "system", "developer": "system", "user": "user"}
_TEXTS = ("text", "input_text", "output_text", "refusal")
"""Types of parts of a content that hold text, in all APIs."""


class Part(TypedDict, total=False):
    """A part of a content. Those that are no text are refused by their type."""

    type: str
    text: str | None
    refusal: str | None


class CalledFunction(TypedDict, total=False):
    name: Required[str]
    arguments: str | dict[str, Any] | None


class ToolCall(TypedDict, total=False):
    id: str | None
    function: Required[CalledFunction]


class Message(TypedDict, total=False):
    """One message of a conversation. reasoning_content: what the model thought before it."""

    role: Required[str]
    content: str | list[Part] | None
    reasoning_content: str | None
    tool_calls: list[ToolCall] | None
    tool_call_id: str | None
    name: str | None


def messages_of(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The messages. Raises `RequestError` for unknown roles, images and missing contents, and where
    there is no message."""
    told = [message_of(one, f"messages[{i}]") for i, one in enumerate(messages)]
    if not told:
        raise invalid("messages", [], "one message or more")
    return told


def message_of(one: Message, path: str) -> dict[str, Any]:
    """One message, which stands at this path. Raises what `messages_of` raises."""
    if not isinstance(one, Mapping):
        raise invalid(path, one, "a message, with its role and content")
    role, content, name = one.get("role", ""), one.get("content"), one.get("name") or ""
    text = text_of(content, f"{path}.content")
    if role == "assistant":
        functions = [(it.get("id") or "", it["function"]) for it in one.get("tool_calls") or ()]
        calls = [call_of(id, it["name"], it.get("arguments")) for id, it in functions]
        return answer(text, one.get("reasoning_content"), calls)
    if content is None and role in (*ROLES, "tool", "function"):
        field = f"{path}.content"
        raise RequestError(f"{field} is missing, expected a text, or a list of parts", field)
    if role in ROLES:
        said = message(ROLES[role], text)
        return {**said, "name": name} if name else said
    if role in ("tool", "function"):
        return result(text, one.get("tool_call_id") or "", name)
    roles = ", ".join((*ROLES, "assistant", "tool"))
    raise invalid(f"{path}.role", role, f"one of {roles}")


def text_of(content: str | Iterable[Part] | None, field: str) -> str:
    """The text of a content; its parts are joined by newlines. Raises `RequestError` for images."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_text_of_part(part, f"{field}[{i}]") for i, part in enumerate(content))


def _text_of_part(part: Part, field: str) -> str:
    kind = part.get("type", "text")
    if kind not in _TEXTS:
        raise RequestError(
            f"{field}.type is {kind[:40]!r}, expected text: this model reads no images, sound or "
            "files",
            f"{field}.type",
        )
    text = part.get("refusal") if kind == "refusal" else part.get("text")
    if text is None:
        raise RequestError(f"{field} has no text, expected one", field)
    return text


def message(role: str, text: str) -> dict[str, Any]:
    """A message that is nothing but a text."""
    return {"role": role, "content": text}


def result(text: str, call_id: str, name: str) -> dict[str, Any]:
    """What a tool returned."""
    fields = {"role": "tool", "content": text, "tool_call_id": call_id}
    return {**fields, "name": name} if name else fields


def named_results(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, where results of tools have the names of their calls: some templates want
    them."""
    names: dict[str, str] = {}
    for one in messages:
        for call in one.get("tool_calls", ()):
            names[call.get("id", "")] = call["function"]["name"]
        if one["role"] == "tool" and "name" not in one and one["tool_call_id"] in names:
            one["name"] = names[one["tool_call_id"]]
    return messages
