"""The bodies of Ollama's requests; fields that they do not name are ignored."""

from __future__ import annotations

from typing import Any

import msgspec

from ...runtime.chat.openai.messages import ToolCall
from ...runtime.chat.openai.tools import Tool
from ..answers.fields import SamplingFields


class Options(SamplingFields, kw_only=True):
    """How an answer is made; kvarn's own words stand here, too."""

    num_predict: int | None = None
    num_ctx: int | None = None


class Message(msgspec.Struct, kw_only=True):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ModelFields(msgspec.Struct, kw_only=True):
    """model, name: both mean the model."""

    model: str | None = None
    name: str | None = None


class GenerationFields(ModelFields, kw_only=True):
    """format: "json" or a JSON schema. think: whether, or how much."""

    options: Options | None = None
    format: str | dict[str, Any] | None = None
    stream: bool | None = None
    think: bool | str | None = None


class ChatRequest(GenerationFields, kw_only=True):
    messages: list[Message] | None = None
    tools: list[Tool] | None = None


class GenerateRequest(GenerationFields, kw_only=True):
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    images: list[str] | None = None
    raw: bool | None = None


class EmbedRequest(ModelFields, kw_only=True):
    input: str | list[str] | None = None
    dimensions: int | None = None
    truncate: bool | None = None


class EmbeddingsRequest(ModelFields, kw_only=True):
    prompt: str | None = None


class ShowRequest(ModelFields, kw_only=True):
    pass
