"""/v1/chat/completions: a conversation is answered, at once or as a stream."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...runtime.chat.replies import chat_logprobs, delta_of, head_of
from ...runtime.serving.protocol import Done, Progress
from ..answers.answering import Numbered, begin, whole
from ..answers.asking import Ask, again
from ..answers.collecting import WholeAnswer
from ..answers.events import Logprobs
from ..answers.fields import reading_of, sampling_of, stops_of, tokens_of
from ..service import Service, model_id
from ..wire.encoding import WAITING, json_response, read_so_far
from ..wire.encoding import event as sse
from ..wire.streams import EVENTS, Stream, with_last_words
from .requests import check_lens, conversation, form_of, n_of, top_of
from .types import ChatRequest
from .usage import FINISH, last_words, lens_of, timings_of, usage_of

DONE = b"data: [DONE]\n\n"


async def chat(service: Service, body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    facts = service.model_called(body.model)
    asks = again(_ask(service, body), n_of(body.n))
    check_lens(body.lens, len(asks))
    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    head = head_of(kind, f"chatcmpl-{uuid.uuid4().hex}", model_id(facts))
    if body.stream:
        wants_usage = bool(body.stream_options and body.stream_options.include_usage)
        events = await begin(service, request, asks)
        chunks = _chunks(head, asks, events, wants_usage)
        return Stream(with_last_words(service, chunks, last_words), EVENTS)
    answers = await whole(service, request, asks)
    choices = [_choice(i, one, asks[i].n_top) for i, one in enumerate(answers)]
    ends = {"usage": usage_of(answers, len(answers)), "timings": timings_of(answers)}
    return json_response({**head, "choices": choices, **ends, **lens_of(answers[0].done)})


def _ask(service: Service, body: ChatRequest) -> Ask:
    prompt, tools = conversation(service, body)
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    n_top = top_of(body.top_logprobs, "top_logprobs")
    return Ask(
        prompt,
        tokens_of(getattr(body, limit), limit),
        sampling_of(body),
        stops_of(body.stop),
        tools.beside(form_of(body, body.response_format)),
        reading_of(body),
        n_top=n_top if body.logprobs else None,
        ignore_eos=bool(body.ignore_eos),
        tools=tools,
        lens=bool(body.lens),
    )


def _choice(i: int, answer: WholeAnswer, n_top: int | None) -> dict[str, Any]:
    choice = {"index": i, "message": answer.reply(), "finish_reason": FINISH[answer.end]}
    content = None if n_top is None else {"content": chat_logprobs(answer.logprobs, n_top)}
    return {**choice, "logprobs": content}


async def _chunks(
    head: dict[str, Any],
    asks: Sequence[Ask],
    events: AsyncIterator[Numbered | None],
    wants_usage: bool,
) -> AsyncIterator[bytes]:
    answers = [WholeAnswer() for _ in asks]
    waiting: dict[int, list[dict[str, Any]]] = {}
    nothing = {"usage": None} if wants_usage else {}

    def chunk(i: int, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": i, "delta": delta, "finish_reason": finish, "logprobs": None}
        if (tokens := waiting.pop(i, None)) is not None:
            choice["logprobs"] = {"content": tokens}
        return sse({**head, "choices": [choice], **nothing, **more})

    for i in range(len(asks)):
        yield chunk(i, {"role": "assistant", "content": ""})
    async for numbered in events:
        if numbered is None:
            yield WAITING
            continue
        i, event = numbered
        answers[i].add(event)
        match event:
            case Progress():
                yield read_so_far(event.done, event.total)
            case Logprobs(tokens):
                waiting.setdefault(i, []).extend(chat_logprobs(tokens, asks[i].n_top or 0))
            case Done():
                ends = {"timings": timings_of([answers[i]]), **lens_of(event)}
                yield chunk(i, {}, FINISH[answers[i].end], **ends)
            case _ if (delta := delta_of(event)) is not None:
                yield chunk(i, delta)
    if wants_usage:
        yield sse({**head, "choices": [], "usage": usage_of(answers, len(answers))})
    yield DONE
