"""/v1/completions: texts are continued as they are, without a chat template."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...runtime.chat.replies import CompletionLogprobs, Logprob, head_of
from ...runtime.chat.tool_calls import TextPiece
from ...runtime.serving.prompt import Prompt, Text
from ...runtime.serving.protocol import Done, Progress
from ..answers.answering import Numbered, begin, whole
from ..answers.asking import Ask, again
from ..answers.collecting import WholeAnswer
from ..answers.events import Logprobs
from ..answers.fields import reading_of, sampling_of, stops_of, tokens_of
from ..answers.inputs import Given, inputs_of
from ..service import Service, model_id
from ..wire.encoding import WAITING, json_response, read_so_far
from ..wire.encoding import event as sse
from ..wire.errors import ApiError
from ..wire.streams import EVENTS, Stream, with_last_words
from .chat import DONE
from .requests import MOST_ANSWERS, check_lens, form_of, n_of, top_of
from .types import CompletionRequest
from .usage import FINISH, last_words, lens_of, timings_of, usage_of

_MAX_TOKENS = 16
"""OpenAI's limit where a request has none."""


async def completions(service: Service, body: CompletionRequest, request: Request) -> Response:
    """Continue texts."""
    facts = service.model_called(body.model)
    n = n_of(body.n)
    asks = [one for prompt in _prompts(body.prompt) for one in again(_ask(body, prompt), n)]
    if len(asks) > MOST_ANSWERS:
        raise ApiError(400, f"prompt × n is {len(asks)}, expected at most {MOST_ANSWERS}", "prompt")
    check_lens(body.lens, len(asks))
    head = head_of("text_completion", f"cmpl-{uuid.uuid4().hex}", model_id(facts))
    if body.stream:
        wants_usage = bool(body.stream_options and body.stream_options.include_usage)
        events = await begin(service, request, asks)
        chunks = _chunks(head, events, asks, n if wants_usage else 0)
        return Stream(with_last_words(service, chunks, last_words), EVENTS)
    answers = await whole(service, request, asks)
    choices = [
        _choice(i, one.text, FINISH[one.end], CompletionLogprobs(asks[i].n_top).of(one.logprobs))
        for i, one in enumerate(answers)
    ]
    ends = {"usage": usage_of(answers, n), "timings": timings_of(answers)}
    return json_response({**head, "choices": choices, **ends, **lens_of(answers[0].done)})


def _prompts(given: Given | None) -> list[Prompt]:
    inputs = inputs_of(given if given is not None else [], "prompt")
    return [Text(one, special=True) if isinstance(one, str) else one for one in inputs]


def _ask(body: CompletionRequest, prompt: Prompt) -> Ask:
    if body.echo and body.logprobs is not None:
        message = "echo with logprobs: a prompt's tokens have no log probabilities here; omit one"
        raise ApiError(400, message, "echo")
    limit = body.max_tokens if body.max_tokens is not None else _MAX_TOKENS
    return Ask(
        prompt,
        tokens_of(limit, "max_tokens"),
        sampling_of(body),
        stops_of(body.stop),
        form_of(body, body.response_format),
        reading_of(body),
        n_top=None if body.logprobs is None else top_of(body.logprobs, "logprobs"),
        ignore_eos=bool(body.ignore_eos),
        echo=bool(body.echo),
        lens=bool(body.lens),
    )


def _choice(i: int, text: str, finish: str | None, logprobs: Any) -> dict[str, Any]:
    return {"index": i, "text": text, "logprobs": logprobs, "finish_reason": finish}


async def _chunks(
    head: dict[str, Any],
    events: AsyncIterator[Numbered | None],
    asks: Sequence[Ask],
    usage_per: int,
) -> AsyncIterator[bytes]:
    """usage_per: answers to each prompt, if usage is wanted."""
    answers, logprobs = (
        [WholeAnswer() for _ in asks],
        [CompletionLogprobs(ask.n_top) for ask in asks],
    )
    waiting: dict[int, list[Logprob]] = {}
    async for numbered in events:
        if numbered is None:
            yield WAITING
            continue
        i, event = numbered
        answers[i].add(event)
        choice, ends = None, dict[str, Any]()
        match event:
            case Progress():
                yield read_so_far(event.done, event.total)
            case Logprobs(tokens):
                waiting.setdefault(i, []).extend(tokens)
            case TextPiece(text):
                choice = _choice(i, text, None, logprobs[i].of(waiting.pop(i, [])))
            case Done():
                rest = logprobs[i].of(waiting.pop(i, []))
                choice, ends = _choice(i, "", FINISH[answers[i].end], rest), lens_of(event)
        if choice is not None:
            yield sse({**head, "choices": [choice], **ends})
    if usage_per:
        yield sse({**head, "choices": [], "usage": usage_of(answers, usage_per)})
    yield DONE
