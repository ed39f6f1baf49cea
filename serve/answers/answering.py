"""Generates what is asked, and tells it as events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from starlette.requests import Request

from ...runtime.chat.tool_calls import CallBegins, Parser
from ...runtime.serving.prompt import Chat, Prompt
from ...runtime.serving.protocol import Done, Pieces, Progress
from ..service import Service
from ..wire.errors import ApiError
from ..wire.streams import close, with_heartbeats
from .asking import Ask
from .collecting import WholeAnswer
from .events import Event, Logprobs
from .parsing import reader_of

Numbered = tuple[int, Event]
"""An event, and which of the answers it belongs to."""
_WAITING = 64
"""Events of several answers that wait for their reader; beyond, generating waits."""


async def begin(
    service: Service, request: Request, asks: Sequence[Ask]
) -> AsyncIterator[Numbered | None]:
    """The events of all answers, and None where a stream should say that it is alive.

    Returns when the first prompt is admitted, so that what is refused at once has its status.
    """
    counted = _counted(_merged(service, asks), request.scope["kvarn.numbers"])
    events = with_heartbeats(counted, service.settings.limits.first_byte_seconds)
    try:
        first = await anext(events)
    except StopAsyncIteration:
        raise ApiError(503, "the engine gave no answer: try again") from None
    except BaseException:
        await close(events)
        raise
    return _from(first, events)


async def complete_answers(
    service: Service, request: Request, asks: Sequence[Ask]
) -> list[WholeAnswer]:
    """All answers when they are complete."""
    answers = [WholeAnswer() for _ in asks]
    async for numbered in await begin(service, request, asks):
        if numbered is not None:
            answers[numbered[0]].add(numbered[1])
    return answers


async def _from(
    first: Numbered | None, events: AsyncIterator[Numbered | None]
) -> AsyncIterator[Numbered | None]:
    try:
        yield first
        async for event in events:
            yield event
    finally:
        await close(events)


async def _counted(
    events: AsyncIterator[Numbered], numbers: dict[str, int]
) -> AsyncIterator[Numbered]:
    """The events, while the log's numbers are counted."""
    try:
        async for i, event in events:
            if isinstance(event, Done):
                counts = {
                    "prompt": event.n_prompt,
                    "cached": event.n_cached,
                    "generated": event.n_generated,
                }
                for name, count in counts.items():
                    numbers[name] = numbers.get(name, 0) + count
            yield i, event
    finally:
        await close(events)


async def _merged(service: Service, asks: Sequence[Ask]) -> AsyncIterator[Numbered]:
    """The events of answers that are generated side by side."""
    if len(asks) == 1:
        events = _answer(service, asks[0])
        try:
            async for event in events:
                yield 0, event
        finally:
            await close(events)
        return
    queue: asyncio.Queue[Numbered | Exception | None] = asyncio.Queue(_WAITING)

    async def fill(i: int, ask: Ask) -> None:
        events = _answer(service, ask)
        try:
            async for event in events:
                await queue.put((i, event))
        except Exception as error:  # which ends them all
            await queue.put(error)
        else:
            await queue.put(None)
        finally:
            await close(events)

    tasks = [asyncio.ensure_future(fill(i, ask)) for i, ask in enumerate(asks)]
    try:
        left = len(tasks)
        while left:
            sent = await queue.get()
            if isinstance(sent, Exception):
                raise sent
            left -= sent is None
            if sent is not None:
                yield sent
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(service: Service, ask: Ask) -> AsyncIterator[Event]:
    """One answer: what the engine sends, parsed."""
    parser, constraint = await reader_of(service, ask)
    answer, n_tokens = WholeAnswer(), 0
    stream = service.engine.generate(ask.prompt, **ask.fields(parser.special, constraint))
    try:
        async for sent in stream:
            if isinstance(sent, Pieces) and sent.logprobs:
                yield Logprobs(sent.logprobs)
            n_tokens += len(sent.tokens) if isinstance(sent, Pieces) else 0
            if isinstance(sent, Done) and sent.finish == "cancelled":
                raise ApiError(503, "the server ends, and ended the answer: ask again later")
            for event in _parsed(parser, sent):
                if ask.tools.one_call and isinstance(event, CallBegins) and answer.calls:
                    yield answer.cut(n_tokens)
                    return
                answer.add(event)
                if isinstance(event, Done):  # before the client has all it wants, and goes
                    await _remember(service, ask.prompt, answer, event)
                yield event
    finally:
        await close(stream)


async def _remember(service: Service, prompt: Prompt, answer: WholeAnswer, done: Done) -> None:
    """Tell the engine the message that clients will send back. (A continued one has another
    beginning. One that was cut off while it thought says nothing: its thoughts have no end.)"""
    is_cut_off = done.finish != "eos" and not answer.text and not answer.calls
    if isinstance(prompt, Chat) and not prompt.continues and not is_cut_off:
        await service.engine.remember(done.id, answer.message())


def _parsed(parser: Parser, sent: Progress | Pieces | Done) -> Sequence[Event]:
    if isinstance(sent, Pieces):
        return parser.push(sent.text)
    return [*parser.finish(), sent] if isinstance(sent, Done) else [sent]
