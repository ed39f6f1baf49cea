"""The body of a request to /v1/responses; fields that it does not name are ignored."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ....runtime.chat.openai.fields import ResponseFormat
from ....runtime.chat.openai.messages import Part
from ...answers.fields import ConstraintFields


class Item(msgspec.Struct, kw_only=True):
    """A message, a call, its result, or reasoning: its type says which fields it has."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    summary: list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class Function(msgspec.Struct, kw_only=True):
    """A function. Tools of other types run at OpenAI's, and are left out."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Function, kw_only=True):
    """A function, or a namespace with the functions in `tools`."""

    tools: list[Function] | None = None


class NamedChoice(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None
    namespace: str | None = None


class Text(msgspec.Struct, kw_only=True):
    format: ResponseFormat | None = None


class ReasoningOptions(msgspec.Struct, kw_only=True):
    effort: str | None = None


class ResponsesRequest(ConstraintFields, kw_only=True):
    """A conversation. previous_response_id, background: of servers that keep answers."""

    input: str | list[Item]
    model: str | None = None
    instructions: str | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    text: Text | None = None
    reasoning: ReasoningOptions | None = None
    stream: bool | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
