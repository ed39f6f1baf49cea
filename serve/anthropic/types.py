"""The bodies of Anthropic's requests; fields that they do not name are ignored."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ...runtime.chat.openai.messages import Part
from ..answers.fields import SamplingFields


class Block(msgspec.Struct, kw_only=True):
    """A block of a content: its type says which fields it has."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Part] | None = None
    is_error: bool | None = None


class Message(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[Block]


class Tool(msgspec.Struct, kw_only=True):
    """A tool of the client's. Those of other types run at Anthropic's, and are left out."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive"]


class Format(msgspec.Struct, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True):
    format: Format | None = None
    effort: str | None = None


class CountRequest(SamplingFields, kw_only=True):
    """A conversation, to count."""

    messages: list[Message]
    model: str | None = None
    system: str | list[Part] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """A conversation, to answer."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
