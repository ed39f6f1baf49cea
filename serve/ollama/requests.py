"""Ollama's messages, options and formats in the engine's terms."""

from __future__ import annotations

from typing import Any

from ...runtime.chat.openai import messages as openai
from ...runtime.chat.openai.tools import Tools
from ...runtime.sampling.constraints.form import Form
from ...runtime.serving.prompt import Chat, Prompt
from ...runtime.serving.protocol import Ready
from ..answers.asking import Ask
from ..answers.fields import reading_of, sampling_of, schema_constraint, stops_of, tokens_of
from ..service import Service
from ..wire.errors import ApiError, invalid
from .types import GenerationFields, Message, Options


def ask_of(body: GenerationFields, prompt: Prompt, facts: Ready, tools: Tools | None = None) -> Ask:
    """How the prompt is answered."""
    options = body.options or Options()
    limit = options.num_predict
    if limit is not None and limit <= 0:  # Ollama's runner then has no limit but the context
        limit = None
    n_ctx = options.num_ctx if options.num_ctx and options.num_ctx > 0 else None
    return Ask(
        prompt,
        tokens_of(limit, "options.num_predict"),
        sampling_of(options, "options."),
        stops_of(options.stop, "options.stop"),
        (tools or Tools()).beside(form_of(body.format)),
        reading_of(options),
        n_ctx=min(n_ctx, facts.n_ctx) if n_ctx else None,
        tools=tools or Tools(),
    )


def chat_prompt(messages: list[Message], body: GenerationFields, tools: Tools) -> Chat:
    """The conversation."""
    converted = [_message(one, f"messages[{i}]") for i, one in enumerate(messages)]
    return Chat.of(converted, tools.offered, think_words(body.think))


def think_words(think: bool | str | None) -> dict[str, Any]:
    """Variables of the chat template that say how much to think."""
    if think is None:
        return {}
    effort = {"reasoning_effort": think} if isinstance(think, str) else {}
    return {"enable_thinking": bool(think), **effort}


def refuse_images(images: list[str] | None, path: str) -> None:
    """Raises `ApiError` 400 for images."""
    if images:
        raise ApiError(400, f"{path} has {len(images)}, expected none: no images are read", path)


def _message(one: Message, path: str) -> dict[str, Any]:
    refuse_images(one.images, f"{path}.images")
    message: openai.Message = {
        "role": one.role,
        "content": one.content or "",
        "reasoning_content": one.thinking,
        "tool_calls": one.tool_calls,
        "tool_call_id": one.tool_call_id,
        "name": one.tool_name,
    }
    return openai.message_of(message, path)


def form_of(wanted: str | dict[str, Any] | None) -> Form | None:
    """What the answer must match."""
    if isinstance(wanted, dict):
        return schema_constraint(wanted)
    if wanted == "json":
        return Form("json_object")
    if wanted:
        raise invalid("format", wanted, '"json" or a JSON schema')
    return None


def served(service: Service, body: Any) -> Ready:
    """The model, if it is called so."""
    return service.model_called(body.model or body.name)
