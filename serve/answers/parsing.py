"""How an answer is read and what it must match: by the model's template, tools and prompt."""

from __future__ import annotations

import msgspec

from ...runtime.chat.tool_calls import Parser, Plain
from ...runtime.sampling.constraints.form import Form
from ...runtime.serving.calls import RequestRefused
from ...runtime.serving.prompt import Chat
from ..service import Service
from .asking import Ask

_END = 64
"""Characters of a prompt's end that tell whether it opens the reasoning."""
_MOST_ENDS = 64
"""Variables of templates, of which the prompt's end is kept."""


async def reader_of(service: Service, ask: Ask) -> tuple[Parser, Form | None]:
    """What reads the answer, and what it must match."""
    if not isinstance(ask.prompt, Chat):
        return Plain(), ask.constraint
    end = await _prompt_end(service, ask.prompt)
    return ask.tools.reader(service.ready().chat_template, end, ask.constraint)


async def _prompt_end(service: Service, chat: Chat) -> str:
    """How the prompt ends. A template ends all prompts with the same variables alike, so a short
    conversation tells, once; one that the template refuses is rendered itself."""
    if chat.continues:
        return str(chat.messages[-1]["content"])[-_END:]
    key = msgspec.json.encode(chat.extra).decode()
    if (end := service.prompt_ends.get(key)) is not None:
        return end
    try:
        short = Chat([{"role": "user", "content": "Hello"}], None, chat.extra)
        end = (await service.engine.render(short)).text[-_END:]
    except RequestRefused:
        return (await service.engine.render(chat)).text[-_END:]
    if len(service.prompt_ends) >= _MOST_ENDS:
        service.prompt_ends.clear()
    service.prompt_ends[key] = end
    return end
