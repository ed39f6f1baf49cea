"""The bodies of OpenAI's requests; fields that they do not name are ignored."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ...runtime.chat.openai.fields import ResponseFormat
from ...runtime.chat.openai.messages import Message
from ...runtime.chat.openai.tools import NamedChoice, Tool
from ..answers.fields import ConstraintFields
from ..answers.inputs import Given


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class GenerationFields(ConstraintFields, kw_only=True):
    """What requests for text have in common. lens: say which passages the answer attended to."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    ignore_eos: bool | None = None
    lens: bool | None = None


class ChatRequest(GenerationFields, kw_only=True):
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


class CompletionRequest(GenerationFields, kw_only=True):
    """prompt: a text, ids of tokens, or a list of either. suffix, best_of: of servers that fill in
    texts and drop answers."""

    prompt: Given | None = None
    suffix: str | None = None
    best_of: int | None = None
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
