"""Conversations as prompts, and what reads the calls of tools in answers to them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..runtime.chat import ChatTemplate, lenient
from ..runtime.chat.replies import arguments_of, called
from ..runtime.chat.tool_calls import Parser, Plain, constraint_for, parser_for
from ..runtime.sampling import Constraint
from ..runtime.tokenizer import Rendered
from .arguments import CompatError

_PROMPT_END = 64
"""Characters of a prompt's end that tell whether it opens the model's reasoning."""
_ROLES = {"developer": "system", "function": "tool"}


@dataclass(frozen=True)
class Question:
    """A prompt. parser: what finds calls in the answer; form: what the answer must match for it."""

    text: Rendered
    parser: Parser = field(default_factory=Plain)
    form: Constraint | None = None


def asked_of(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], tools: Any, choice: Any
) -> Question:
    """The prompt of a conversation, as the template takes it."""
    plain: lenient.Messages = [_plain(one, f"messages[{i}]") for i, one in enumerate(messages)]
    text = lenient.prompt_of(template, plain, tools, {})
    if not tools:
        return Question(text)
    parser = parser_for(template.source, tools, text[-_PROMPT_END:])
    form = constraint_for(template.source, tools, choice, text[-_PROMPT_END:])
    return Question(text, parser, None if form is None else Constraint.of(form))


def form_of(response_format: Mapping[str, Any] | None) -> Constraint | None:
    """What an answer must match, of OpenAI's `response_format`."""
    asked = response_format or {"type": "text"}
    schema = asked.get("schema") or asked.get("json_schema", {}).get("schema")
    match asked.get("type"):
        case "text":
            return None
        case "json_object" | "json_schema" if schema is not None:
            return Constraint("json_schema", json.dumps(schema))
        case "json_object":
            return Constraint("json_object")
    raise CompatError(
        f"response_format is {dict(asked)!r:.80}, expected the type text, json_object, or "
        "json_schema with its schema"
    )


def _plain(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    """One of OpenAI's messages as templates take it. Raises `CompatError` for images."""
    made = {k: v for k, v in message.items() if v is not None}
    made["role"] = _ROLES.get(made["role"], made["role"])
    content = made.get("content", "")
    if not isinstance(content, str):
        if other := next((part for part in content if part.get("type") != "text"), None):
            raise CompatError(f"{path} has a part of type {other.get('type')!r:.40}, not text")
        content = "\n".join(part["text"] for part in content)
    made["content"] = content
    if calls := made.pop("tool_calls", None):
        made["tool_calls"] = [_call(one) for one in calls]
    return made


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    given = call["function"].get("arguments", "")
    arguments = arguments_of(given) if isinstance(given, str) else given
    return called(call.get("id", ""), call["function"]["name"], arguments)
