"""/api/chat and /api/generate: answers as lines of JSON, or in one piece."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...runtime.chat.openai.messages import message
from ...runtime.chat.openai.tools import Tools, functions_of
from ...runtime.chat.replies import Call, arguments_of
from ...runtime.chat.tool_calls import CallEnds, ReasoningPiece, TextPiece
from ...runtime.serving.prompt import Chat, Prompt, Text
from ...runtime.serving.protocol import Done
from ..answers.answering import Numbered, begin, complete_answers
from ..answers.asking import Ask
from ..answers.collecting import WholeAnswer
from ..answers.inputs import check_no_suffix
from ..service import Service
from ..wire.encoding import json_response, line
from ..wire.errors import ApiError, shape
from ..wire.streams import LINES, Stream, with_error_end
from .requests import ask_of, chat_prompt, refuse_images, served, think_words
from .types import ChatRequest, GenerateRequest

Write = Callable[[str, str, Sequence[Call]], dict[str, Any]]
"""Text, reasoning and calls → the fields that hold them."""


async def chat(service: Service, body: ChatRequest, request: Request) -> Response:
    """Answer a conversation; without messages, say that the model is loaded."""
    facts = served(service, body)
    if not body.messages:
        return json_response(_loaded(body.model, _as_message))
    tools = Tools(functions_of(body.tools, service.skip_tool))
    ask = ask_of(body, chat_prompt(body.messages, body, tools), facts, tools)
    return await _respond(service, request, ask, body, _as_message)


async def generate(service: Service, body: GenerateRequest, request: Request) -> Response:
    """Answer a text, or with `raw` continue it."""
    facts = served(service, body)
    refuse_images(body.images, "images")
    check_no_suffix(body.suffix)
    if not body.prompt:
        return json_response(_loaded(body.model, _as_response))
    prompt: Prompt
    if body.raw:
        prompt = Text(body.prompt, special=True)
    else:
        system = [message("system", body.system)] if body.system else []
        messages = [*system, message("user", body.prompt)]
        prompt = Chat.of(messages, None, think_words(body.think))
    return await _respond(service, request, ask_of(body, prompt, facts), body, _as_response)


async def _respond(
    service: Service,
    request: Request,
    ask: Ask,
    body: ChatRequest | GenerateRequest,
    write: Write,
) -> Response:
    started = time.monotonic()
    if body.stream is not False:
        events = await begin(service, request, [ask])
        lines = _lines(body.model or body.name or "", events, write, started)
        return Stream(with_error_end(service, lines, _error_end), LINES)
    [answer] = await complete_answers(service, request, [ask])
    head = _head(body.model or body.name or "")
    content = write(answer.text, answer.reasoning, answer.calls)
    return json_response({**head, **content, **_end(answer, started)})


async def _lines(
    model: str, events: AsyncIterator[Numbered | None], write: Write, started: float
) -> AsyncIterator[bytes]:
    answer = WholeAnswer()
    async for numbered in events:
        event = None if numbered is None else numbered[1]
        if event is not None:
            answer.add(event)
        content = write("", "", ())
        match event:
            case TextPiece(text):
                content = write(text, "", ())
            case ReasoningPiece(text):
                content = write("", text, ())
            case CallEnds(index):
                content = write("", "", [answer.calls[index]])
            case Done():
                yield line({**_head(model), **content, **_end(answer, started)})
                return
            case None:  # nothing for a while: a line says that the stream is alive
                pass
            case _:
                continue
        yield line({**_head(model), **content, "done": False})


def _as_message(text: str, reasoning: str, calls: Sequence[Call]) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning:
        fields["thinking"] = reasoning
    if calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "function": {"name": call.name, "arguments": arguments_of(call.arguments)},
            }
            for call in calls
        ]
    return {"message": fields}


def _as_response(text: str, reasoning: str, calls: Sequence[Call]) -> dict[str, Any]:
    return {"response": text, "thinking": reasoning} if reasoning else {"response": text}


def _head(model: str) -> dict[str, Any]:
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    return {"model": model, "created_at": f"{stamp}.{int(now % 1 * 1e6):06}Z"}


def _loaded(model: str | None, write: Write) -> dict[str, Any]:
    return {**_head(model or ""), **write("", "", ()), "done": True, "done_reason": "load"}


def _end(answer: WholeAnswer, started: float) -> dict[str, Any]:
    """Durations are in nanoseconds."""
    done = answer.done or Done(0, "cancelled")
    return {
        "done": True,
        "done_reason": "length" if answer.end == "length" else "stop",
        "total_duration": int(1e9 * (time.monotonic() - started)),
        "load_duration": 0,
        "prompt_eval_count": done.n_prompt,
        "prompt_eval_duration": int(1e9 * done.read_seconds),
        "eval_count": done.n_generated,
        "eval_duration": int(1e9 * done.generate_seconds),
    }


def _error_end(error: ApiError) -> bytes:
    return line(shape("/api/", error))
