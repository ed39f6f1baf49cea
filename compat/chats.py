"""Conversations as prompts, and what reads the calls of tools in answers to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..runtime.chat import ChatTemplate, lenient
from ..runtime.sampling import Constraint
from ..runtime.tokenizer import Rendered
from ..system.extras import how_to_install
from .answers import Parser
from .arguments import CompatError, plain_messages
from .optional import tool_calls

_PROMPT_END = 64
"""Characters of a prompt's end that tell whether it opens the model's reasoning."""


@dataclass(frozen=True)
class Question:
    """A prompt. parser: what finds calls in the answer; form: what the answer must match for it."""

    text: Rendered
    parser: Parser | None = None
    form: Constraint | None = None


def asked_of(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], tools: Any, choice: Any
) -> Question:
    """The prompt of a conversation, as the template takes it."""
    form: Sequence[Mapping[str, Any]] = plain_messages(messages)
    offered = tools
    if tools and not template.tells_tools:
        form, offered = lenient.with_tools(form, tools), None
    text = lenient.rendered(form, lambda one: template.render(one, tools=offered))
    if not tools:
        return Question(text)
    if tool_calls is None:
        raise CompatError(f"tools need more packages: {how_to_install('serve')}")
    parser = tool_calls.parser_for(template.source, tools, text[-_PROMPT_END:])
    call = tool_calls.constraint_for(template.source, tools, choice, text[-_PROMPT_END:])
    if call is None:
        return Question(text, parser)
    return Question(text, parser, Constraint(call.kind, call.value, call.trigger, call.after))
