"""The choices of a chat's or a completion's response, at once or as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...runtime.chat.replies import Choice, delta_of, head_of
from ...runtime.serving.prompt import Text
from ...runtime.serving.protocol import Done, Progress
from ..answers.answering import Numbered, begin, complete_answers
from ..answers.asking import Ask
from ..answers.collecting import WholeAnswer
from ..answers.events import Logprobs
from ..service import Service, model_id
from ..wire.encoding import WAITING, json_response, read_so_far
from ..wire.encoding import event as sse
from ..wire.streams import EVENTS, Stream, with_error_end
from .requests import check_lens
from .types import GenerationFields
from .usage import error_end, lens_of, timings_of, usage_of

_DONE = b"data: [DONE]\n\n"


async def response(
    service: Service,
    body: GenerationFields,
    request: Request,
    asks: Sequence[Ask],
    n: int,
    *,
    is_chat: bool,
) -> Response:
    """The response of one choice for each of `asks`, `n` of which have the same prompt."""
    check_lens(body.lens, len(asks))
    head = head_of(model_id(service.ready()), is_chat=is_chat, stream=bool(body.stream))
    before = [0 if is_chat else await _n_before(service, ask) for ask in asks]
    choices = [Choice(is_chat, ask.n_top, i, n) for i, (ask, n) in enumerate(zip(asks, before))]
    if body.stream:
        wants_usage = bool(body.stream_options and body.stream_options.include_usage)
        events = await begin(service, request, asks)
        chunks = _chunks(head, choices, events, n if wants_usage else 0)
        return Stream(with_error_end(service, chunks, error_end), EVENTS)
    answers, told = await complete_answers(service, request, asks), []
    for choice, answer in zip(choices, answers, strict=True):
        choice.waiting += answer.logprobs
        told.append(choice.whole(answer.reply(), _finish(answer)))
    ends = {"usage": usage_of(answers, n), "timings": timings_of(answers)}
    return json_response({**head, "choices": told, **ends, **lens_of(answers[0].done)})


def _finish(answer: WholeAnswer) -> str:
    """Why an answer ended."""
    return "stop" if answer.end == "stop_text" else answer.end


async def _n_before(service: Service, ask: Ask) -> int:
    """The characters of a completion's prompt, from whose start OpenAI counts offsets of tokens."""
    if ask.n_top is None:
        return 0
    prompt = ask.prompt
    return len(
        prompt.text if isinstance(prompt, Text) else (await service.engine.render(prompt)).text
    )


async def _chunks(
    head: dict[str, Any],
    choices: Sequence[Choice],
    events: AsyncIterator[Numbered | None],
    usage_per: int,
) -> AsyncIterator[bytes]:
    """usage_per: choices of each prompt, if usage is wanted."""
    answers = [WholeAnswer() for _ in choices]
    shared = {**head, "usage": None} if usage_per else head
    for choice in choices:
        if choice.is_chat:
            begins = choice.chunk({"role": "assistant", "content": ""})
            yield sse({**shared, "choices": [begins]})
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
                choices[i].waiting += tokens
            case Done():
                ends = {"timings": timings_of([answers[i]]), **lens_of(event)}
                last = choices[i].chunk({}, _finish(answers[i]))
                yield sse({**shared, "choices": [last], **ends})
            case _ if (delta := delta_of(event)) is not None:
                yield sse({**shared, "choices": [choices[i].chunk(delta)]})
    if usage_per:
        yield sse({**head, "choices": [], "usage": usage_of(answers, usage_per)})
    yield _DONE
