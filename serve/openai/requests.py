"""OpenAI's messages, tools and formats in the engine's terms."""

from __future__ import annotations

from typing import Any

from ...runtime.chat.openai import fields as openai
from ...runtime.chat.openai.fields import ResponseFormat
from ...runtime.chat.openai.messages import messages_of
from ...runtime.chat.openai.tools import Tools, chosen, functions_of
from ...runtime.sampling.constraints.form import Form
from ...runtime.serving.prompt import Chat
from ..answers.fields import ConstraintFields, checkable, constraint_of
from ..service import Service
from ..wire.errors import ApiError, invalid
from .types import ChatRequest

MOST_ANSWERS = 64
MOST_TOP = 20


def conversation(service: Service, body: ChatRequest) -> tuple[Chat, Tools]:
    """What is asked, and the tools of it."""
    functions = functions_of(body.tools, service.skip_tool)
    tools = chosen(functions, body.tool_choice, body.parallel_tool_calls)
    extra = {**effort_words(body.reasoning_effort), **(body.chat_template_kwargs or {})}
    return Chat.of(messages_of(body.messages), tools.offered, extra), tools


def effort_words(effort: str | None) -> dict[str, Any]:
    """What templates know of how much a model is to think."""
    if effort is None:
        return {}
    if effort in ("none", "minimal"):
        return {"enable_thinking": False}
    return {"enable_thinking": True, "reasoning_effort": effort}


def form_of(body: ConstraintFields, wanted: ResponseFormat | None) -> Form | None:
    """What the answer must match. Raises `RequestError` where two fields say it."""
    constraint, form = constraint_of(body), openai.form_of(wanted)
    if form is None:
        return constraint
    if constraint is not None:
        raise ApiError(400, "response_format and a grammar exclude each other: omit one", "grammar")
    return checkable(form)


def n_of(n: int | None) -> int:
    """How many answers."""
    if n is not None and not 1 <= n <= MOST_ANSWERS:
        raise invalid("n", n, f"1 to {MOST_ANSWERS}")
    return n or 1


def check_lens(lens: bool | None, n_answers: int) -> None:
    """Raises `ApiError` 400 for what several answers read: they would have one field for it."""
    if lens and n_answers > 1:
        raise ApiError(400, f"lens shows one answer, the request has {n_answers}", "lens")


def top_of(n_top: int | None, field: str) -> int:
    """How many likely tokens are listed in the place of each."""
    if n_top is not None and not 0 <= n_top <= MOST_TOP:
        raise invalid(field, n_top, f"0 to {MOST_TOP}")
    return n_top or 0
