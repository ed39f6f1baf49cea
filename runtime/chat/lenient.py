"""Conversations that a template refuses, or whose tools it leaves out, in forms that it takes.

Programs send several messages of one role in a row, system messages in the middle, and results of
tools, whatever the model's template allows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..tokenizer import Rendered
from .sandbox.errors import TemplateError

if TYPE_CHECKING:
    from .template import ChatTemplate

Message = Mapping[str, Any]
Messages = Sequence[Message]
Render = Callable[[Messages], Rendered]
BETWEEN = "\n\n"
"""Stands between the texts of messages that become one."""
_TOOLS = (
    "You can call tools. To call one, answer with nothing but a JSON object of this form:\n"
    '{"name": NAME, "arguments": {…}}\nThe tools, each with the schema of its arguments:\n'
)


def prompt_of(
    template: ChatTemplate,
    messages: Messages,
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
) -> Rendered:
    """What a template makes of messages, and of tools, which it may leave out. Raises
    `TemplateError` as `rendered`."""
    if tools and not template.tells_tools:
        messages, tools = with_tools(messages, tools), None
    return rendered(messages, lambda form: template.render(form, tools=tools, **variables))


def rendered(messages: Messages, render: Render) -> Rendered:
    """The messages as the template takes them: as they are, or in the first of `forms` that it does
    not refuse. Raises its first `TemplateError` where it refuses all of them."""
    try:
        return render(messages)
    except TemplateError as error:
        first = error
    for form in forms(messages):
        try:
            return render(form)
        except TemplateError:
            continue
    raise first


def forms(messages: Messages) -> Iterator[list[Message]]:
    """The same conversation in forms for stricter and stricter templates: no two messages of a role
    in a row, and the system text first; calls and results of tools as text; no system message."""
    yield merged(messages)
    plain = merged([_as_text(message) for message in messages])
    yield plain
    if plain and plain[0].get("role") == "system":
        yield merged([{**plain[0], "role": "user"}, *plain[1:]])


def merged(messages: Messages) -> list[Message]:
    """Messages of one role in a row as one, and later system messages as the user's. Those with
    calls or results of tools stay as they are."""
    joined: list[Message] = []
    for given in messages:
        last = joined[-1] if joined else {}
        is_late = given.get("role") == "system" and last.get("role", "system") != "system"
        message = {**given, "role": "user"} if is_late else given
        if _is_text(message) and _is_text(last) and message.get("role") == last.get("role"):
            texts = [text for one in (last, message) if (text := one.get("content"))]
            joined[-1] = {**last, "content": BETWEEN.join(texts)}
        else:
            joined.append(message)
    return joined


def with_tools(messages: Messages, tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages with a system text that tells of the tools, for templates that do not. Calls are
    asked for in the form that `tool_calls` reads where a template has none."""
    functions = [tool.get("function", tool) for tool in tools]
    text = _TOOLS + "\n".join(json.dumps(one, ensure_ascii=False) for one in functions)
    first = messages[0] if messages else {}
    if first.get("role") == "system" and _is_text(first):
        system = f"{first['content']}{BETWEEN}{text}" if first["content"] else text
        return [{**first, "content": system}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _is_text(message: Message) -> bool:
    """Whether a message is nothing but a text."""
    return (
        message.get("role") != "tool"
        and not message.get("tool_calls")
        and isinstance(message.get("content"), str)
    )


def _as_text(message: Message) -> Message:
    """A message without calls, and a tool's result as the user's text."""
    content = message.get("content") or ""
    if message.get("role") == "tool":
        return {"role": "user", "content": content}
    if not (calls := message.get("tool_calls")):
        return message
    texts = [content] if content else []
    for call in calls:
        function = call.get("function", call)
        spelled = {"name": function.get("name"), "arguments": function.get("arguments")}
        texts.append(json.dumps(spelled, ensure_ascii=False))
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join(texts)}
