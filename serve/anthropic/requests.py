"""Anthropic's messages, tools and choices in the engine's terms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...runtime.chat.openai import messages as forms
from ...runtime.chat.openai.messages import Part
from ...runtime.chat.openai.tools import Choice, Tools, function, named
from ...runtime.chat.replies import answer, tool_call
from ...runtime.sampling.constraints.form import Form
from ...runtime.serving.prompt import Chat
from ..answers.fields import schema_constraint
from ..service import Service
from ..wire.errors import ApiError, invalid
from .types import Block, CountRequest, Message, Tool

PRIVATE = "x-anthropic-"
"""A system block that begins so tells Anthropic's servers of a client's request. It differs
between conversations, and would end what they share at their first tokens."""
_HIDDEN = ("redacted_thinking",)
"""Blocks that only Anthropic's models can read."""


def conversation(body: CountRequest, tools: Tools) -> Chat:
    """The messages with their system text first, and the tools."""
    system = _system(body.system)
    messages = [forms.message("system", system)] if system else []
    for i, one in enumerate(body.messages):
        messages += _messages(one, f"messages[{i}]")
    if not body.messages:
        messages = []
    return Chat.of(messages, tools.offered, _extra(body))


def _system(system: str | list[Part] | None) -> str:
    if isinstance(system, list):
        system = [part for part in system if not (part.get("text") or "").startswith(PRIVATE)]
    text = forms.text_of(system, "system")
    return "" if text.startswith(PRIVATE) else text


def _extra(body: CountRequest) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if body.thinking is not None:
        extra["enable_thinking"] = body.thinking.type != "disabled"
    if body.output_config is not None and body.output_config.effort is not None:
        extra["reasoning_effort"] = body.output_config.effort
    return extra


def _messages(one: Message, path: str) -> Iterator[dict[str, Any]]:
    """The messages that one of Anthropic's becomes: results of tools are messages of their own."""
    if one.role not in ("user", "assistant", "system"):
        raise invalid(f"{path}.role", one.role, "user or assistant")
    if isinstance(one.content, str):
        yield forms.message(one.role, one.content)
        return
    blocks = [(block, f"{path}.content[{i}]") for i, block in enumerate(one.content)]
    if one.role == "assistant":
        yield _answer(blocks)
        return
    texts = []
    for block, at in blocks:
        if block.type == "tool_result":
            text = forms.text_of(block.content, f"{at}.content")
            yield forms.result(text, block.tool_use_id or "", "")
        else:
            texts.append(_text(block, at))
    if texts or not blocks:
        yield forms.message(one.role, "\n".join(texts))


def _answer(blocks: list[tuple[Block, str]]) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for block, at in blocks:
        if block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            if not block.name:
                raise ApiError(400, f"{at}.name is missing, expected a tool's", f"{at}.name")
            calls.append(tool_call(block.id or "", block.name, block.input or {}))
        elif block.type not in _HIDDEN:
            texts.append(_text(block, at))
    return answer("\n".join(texts), "\n".join(thoughts), calls)


def _text(block: Block, path: str) -> str:
    return forms.text_of([Part(type=block.type, text=block.text)], path.rpartition("[")[0])


def tools_of(service: Service, body: CountRequest) -> Tools:
    """The tools, and the choice among them."""
    tools = [made for i, one in enumerate(body.tools or ()) if (made := _tool(service, i, one))]
    wanted = body.tool_choice
    if wanted is None:
        return Tools(tools)
    choice: Choice = {"any": "required"}.get(wanted.type, wanted.type)
    if wanted.type == "tool":
        choice = named(wanted.name or "", tools, "tool_choice.name")
    elif wanted.type == "any" and not tools:
        raise invalid("tool_choice.type", wanted.type, "tools, of which one is to be called")
    return Tools(tools, choice, one_call=bool(wanted.disable_parallel_tool_use))


def _tool(service: Service, i: int, tool: Tool) -> dict[str, Any] | None:
    if tool.type not in (None, "custom"):
        service.skip_tool(f"tools[{i}]", tool.type or "")
        return None
    return function(tool.name, tool.description, tool.input_schema)


def form_of(body: CountRequest) -> Form | None:
    """What the answer must match."""
    config = body.output_config
    return schema_constraint(config.format.schema) if config and config.format else None
