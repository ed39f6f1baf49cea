"""Conversations in the engine's form, whichever API they came from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ...runtime.serving.prompt import Chat
from ..wire.errors import ApiError, invalid

_TEXTS = ("text", "input_text", "output_text", "refusal")
"""Types of parts of a content that hold text, in all APIs."""


class Part(msgspec.Struct, kw_only=True):
    """A part of a content. Those that are no text are refused by their type."""

    type: str = "text"
    text: str | None = None
    refusal: str | None = None


def text_of(content: str | Iterable[Part] | None, field: str) -> str:
    """The text of a content; its parts are joined by newlines. Raises `ApiError` 400 for images."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_text_of_part(part, f"{field}[{i}]") for i, part in enumerate(content))


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def answer(text: str, reasoning: str | None, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """An earlier answer, as `WholeAnswer.message` has it."""
    reply = message("assistant", text)
    if reasoning:
        reply["reasoning_content"] = reasoning
    if calls:
        reply["tool_calls"] = calls
    return reply


def result(text: str, call_id: str, name: str) -> dict[str, Any]:
    """What a tool returned."""
    fields = {"role": "tool", "content": text, "tool_call_id": call_id}
    return {**fields, "name": name} if name else fields


def chat_of(
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    extra: dict[str, Any],
    field: str = "messages",
) -> Chat:
    """The conversation. Where its last message is an answer, the model goes on with it.

    Results of tools get the names of their calls, which some templates want. Raises `ApiError` 400
    for no messages.
    """
    if not messages:
        raise invalid(field, [], "one message or more")
    names: dict[str, str] = {}
    for one in messages:
        for call in one.get("tool_calls", ()):
            names[call.get("id", "")] = call["function"]["name"]
        if one["role"] == "tool" and "name" not in one and one["tool_call_id"] in names:
            one["name"] = names[one["tool_call_id"]]
    last = messages[-1]
    continues = last["role"] == "assistant" and "tool_calls" not in last
    return Chat(messages, tools or None, extra, continues)


def _text_of_part(part: Part, field: str) -> str:
    if part.type not in _TEXTS:
        raise ApiError(
            400,
            f"{field}.type is {part.type[:40]!r}, expected text: this model reads no "
            "images, sound or files",
            f"{field}.type",
        )
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise ApiError(400, f"{field} has no text, expected one", field)
    return text
