"""The bodies of OpenAI's requests; fields that they do not name are ignored."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..answers.fields import Constrained
from ..answers.inputs import Given
from ..answers.messages import Part


class CalledFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(msgspec.Struct, kw_only=True):
    id: str = ""
    function: CalledFunction


class Message(msgspec.Struct, kw_only=True):
    """One message of a conversation. reasoning_content: what the model thought before it."""

    role: str
    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class Function(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A function. Tools of other types run at OpenAI's, and are left out."""

    type: str = "function"
    function: Function | None = None


class FunctionName(msgspec.Struct, kw_only=True):
    name: str


class NamedChoice(msgspec.Struct, kw_only=True):
    type: Literal["function"] = "function"
    function: FunctionName


class JsonSchema(msgspec.Struct, kw_only=True):
    schema: dict[str, Any] | None = None
    name: str | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class Generated(Constrained, kw_only=True):
    """What requests for text have in common. lens: say which passages the answer attended to."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    ignore_eos: bool | None = None
    lens: bool | None = None


class ChatRequest(Generated, kw_only=True):
    messages: list[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(Generated, kw_only=True):
    """prompt: a text, ids of tokens, or a list of either."""

    prompt: Given | None = None
    max_tokens: int | None = None
    logprobs: int | None = None
    echo: bool | None = None
    response_format: ResponseFormat | None = None


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """input: a text, ids of tokens, or a list of either."""

    input: Given
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
