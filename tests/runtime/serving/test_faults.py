"""Requests that are cut off, too many, or malformed; engines that are killed or told to end."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvarn.runtime.serving.calls import MOST_UNREAD, RequestRefused
from kvarn.runtime.serving.prompt import Text
from kvarn.runtime.serving.protocol import Pieces, Progress

from .live import GREEDY, Answer, Live, live, start_of

LONG = "The mill stood by the river, and the miller slept. " * 150
"""A prompt that takes a second."""
ENDLESS = {"sampling": GREEDY, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(start_of(tmp_path_factory.mktemp("cache"), n_ctx=4096, queue=8)) as running:
        yield running


async def first_piece(engine: Live, prompt: str = "Once", **fields: object) -> None:
    """Begin an answer and go away after its first piece."""
    answer = engine.client.generate(Text(prompt), **{**ENDLESS, **fields})
    async for message in answer:
        if isinstance(message, Pieces):
            break
    await answer.aclose()  # type: ignore[attr-defined]


async def is_free(engine: Live) -> float:
    """Seconds until no request is running."""
    began = time.perf_counter()
    while len(engine.client._calls):
        await asyncio.sleep(0.005)
        assert time.perf_counter() - began < 10
    return time.perf_counter() - began


def test_an_answer_that_nobody_waits_for_ends(engine: Live) -> None:
    engine.run(first_piece(engine))
    assert engine.run(is_free(engine)) < 2


def test_a_prompt_that_nobody_waits_for_is_not_read_on(engine: Live) -> None:
    async def leave() -> Progress:
        answer = engine.client.generate(Text(LONG), **ENDLESS)
        async for message in answer:
            if isinstance(message, Progress) and message.done:
                break
        await answer.aclose()  # type: ignore[attr-defined]
        await is_free(engine)
        assert isinstance(message, Progress)
        return message

    assert engine.run(leave()).done < len(LONG) // 8
    assert engine.run(engine.answer("Once", max_tokens=2)).done is not None


def test_a_task_that_is_cancelled_ends_its_request(engine: Live) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(engine.answer("Once", **ENDLESS))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await is_free(engine)

    engine.run(cancel())


def test_what_is_too_much_is_refused_at_once(engine: Live) -> None:
    """Four run and eight wait; the others are told so within a moment."""

    async def ask() -> tuple[list[Answer | BaseException], float]:
        began = time.perf_counter()
        tasks = [asyncio.create_task(engine.answer("Once", **ENDLESS)) for _ in range(20)]
        refused: set[asyncio.Task[Answer]] = set()
        while len(refused) < 8:
            others = set(tasks) - refused
            ended, _ = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
            refused |= ended
        seconds = time.perf_counter() - began
        assert all(isinstance(task.exception(), RequestRefused) for task in refused)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await is_free(engine)
        return results, seconds

    results, seconds = engine.run(ask())
    refused = [one.refused for one in results if isinstance(one, RequestRefused)]
    assert {one.kind for one in refused} == {"busy"}
    assert len(refused) == 8
    assert seconds < 2


def test_an_answer_goes_on_while_a_prompt_is_read(engine: Live) -> None:
    """It has 30% of the time: at least half of that by its own speed, in one of three tries: other
    programs take time from either."""

    async def beside(attempt: int) -> float:
        n_tokens = 0

        async def generate() -> None:
            nonlocal n_tokens
            async for message in engine.client.generate(Text("Once"), **ENDLESS):
                if isinstance(message, Pieces):
                    n_tokens += len(message.tokens)

        async def rate(until: float | asyncio.Task[Answer]) -> float:
            began, before = time.perf_counter(), n_tokens
            await (asyncio.sleep(until) if isinstance(until, float) else until)
            return (n_tokens - before) / (time.perf_counter() - began)

        task = asyncio.create_task(generate())
        while not n_tokens:
            await asyncio.sleep(0.01)
        alone = await rate(0.5)
        reading = asyncio.create_task(engine.answer(f"{attempt}: {LONG}", max_tokens=1))
        share = await rate(reading) / alone
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await is_free(engine)
        return share

    assert any(engine.run(beside(attempt)) > 0.15 for attempt in range(3))


def test_an_answer_that_nobody_reads_is_paused(engine: Live) -> None:
    """It takes no more memory, leaves others their time, and goes on once it is read."""

    async def stall() -> tuple[int, Answer, int]:
        answer = engine.client.generate(Text("Once"), **ENDLESS, max_tokens=3 * MOST_UNREAD)
        await anext(answer)
        with_other = await engine.answer("Twice", sampling=GREEDY, max_tokens=40)
        (call,) = (call for _, call in engine.client._calls._running.values() if call)
        for _ in range(200):
            before = len(call._unread)
            await asyncio.sleep(0.1)
            if len(call._unread) == before:
                break
        n_tokens = sum([len(m.tokens) async for m in answer if isinstance(m, Pieces)])
        return before, with_other, n_tokens

    n_unread, other, n_tokens = engine.run(stall())
    assert MOST_UNREAD <= n_unread < 2 * MOST_UNREAD
    assert other.done is not None
    assert n_tokens == 3 * MOST_UNREAD


def test_many_short_requests_leak_nothing(engine: Live) -> None:
    """A third of them are cut off at random: descriptors and memory stay level."""
    drawn = random.Random(0)

    def held() -> tuple[int, int]:
        statm = Path(f"/proc/{engine.client.pid}/statm").read_text().split()
        n_files = len(list(Path(f"/proc/{engine.client.pid}/fd").iterdir()))
        return int(statm[1]) * os.sysconf("SC_PAGE_SIZE"), n_files

    async def some(n: int) -> None:
        async def one(i: int) -> None:
            if i % 3:
                answer = await engine.answer(f"{i} Once", max_tokens=4, sampling=GREEDY)
                assert answer.done is not None
                assert answer.done.n_generated == 4
                return
            task = asyncio.create_task(engine.answer(f"{i} Once", **ENDLESS))
            await asyncio.sleep(drawn.random() / 20)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        for i in range(0, n, 10):
            await asyncio.gather(*(one(i + j) for j in range(10)))
        await is_free(engine)

    engine.run(some(60))
    n_bytes, n_files = held()
    engine.run(some(240))
    after_bytes, after_files = held()
    assert after_files <= n_files + 2
    assert after_bytes < n_bytes + (16 << 20)
    assert len(engine.client._calls._slots) == 4096
