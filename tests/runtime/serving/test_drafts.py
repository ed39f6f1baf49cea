"""Answers of an engine whose streams draft: those of contexts that do not, alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvarn
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.sampling.constraints.form import Form
from kvarn.runtime.serving.drafts import draft_room
from kvarn.runtime.serving.prompt import Reading

from .live import GREEDY, Answer, Live, live, start_of

LINES = "The miller is called Tom. He lives by the river. His dog is called Rex. "
PROMPTS = [LINES * 4, "one two three four five six " * 12, "Once upon a time", f"Rex. {LINES * 3}"]


@pytest.fixture(scope="module")
def model() -> Model:
    return load(threads=1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    start = start_of(tmp_path_factory.mktemp("cache"), words={"draft": "ngram"})
    with live(start) as running:
        yield running


async def counted(engine: Live, answers: list[Answer]) -> dict[str, float]:
    """The counters, once an engine has told of its first answers: of tokens after their first."""
    n_generated = sum(len(answer.tokens) - 1 for answer in answers)
    while engine.client.counters.get("generated_tokens", 0) < n_generated:
        await asyncio.sleep(0.01)
    return engine.client.counters


async def at_once(engine: Live, prompts: list[str], **fields: Any) -> list[Answer]:
    return await asyncio.gather(*(engine.answer(prompt, **fields) for prompt in prompts))


def alone(model: Model, prompt: str, n: int, sampler: kvarn.Sampler) -> str:
    with model.context(2048) as context:
        return "".join(context.generate(prompt, n, sampler))


def test_rows_that_drafts_may_take() -> None:
    assert [draft_room(n) for n in (1, 2, 3, 4, 9)] == [31, 1, 0, 0, 0]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_streams_that_draft_have_their_own_answers(model: Model, tmp_path: Path, n: int) -> None:
    """As many tokens as were asked for, though the last pass may have read more."""
    prompts = PROMPTS[:n]
    with live(start_of(tmp_path, words={"draft": "ngram"})) as engine:
        answers = engine.run(at_once(engine, prompts, max_tokens=60, sampling=GREEDY))
        counters = engine.run(counted(engine, answers))
    expected = [alone(model, prompt, 60, kvarn.Sampler(temp=0)) for prompt in prompts]
    assert [answer.text for answer in answers] == expected
    for answer, prompt in zip(answers, prompts):
        assert answer.done is not None
        assert len(answer.tokens) <= 60 and answer.done.n_generated == len(answer.tokens)
        assert answer.done.n_prompt == len(model.tokenizer.encode(prompt, bos=True))
    assert counters["accepted_tokens"] <= counters["drafted_tokens"]
    assert counters["accepted_tokens"] > 0 or n > 2


def test_seeds_give_the_same_tokens(engine: Live, model: Model) -> None:
    sampling = {"seed": 5, "temp": 0.7}
    answers = engine.run(at_once(engine, PROMPTS, max_tokens=30, sampling=sampling))
    sampler = kvarn.Sampler(seed=5, temp=0.7)
    assert [a.text for a in answers] == [alone(model, p, 30, sampler) for p in PROMPTS]


def test_a_stop_string_within_a_draft_ends_an_answer(engine: Live, model: Model) -> None:
    text = alone(model, PROMPTS[1], 60, kvarn.Sampler(temp=0))
    stop = text[30:36]
    answer = engine.run(
        engine.answer(PROMPTS[1], max_tokens=60, sampling=GREEDY, stop=[stop], ignore_eos=True)
    )
    assert answer.text == text[: text.index(stop)]
    assert answer.done is not None and answer.done.finish == "stop"


def test_constraints_and_methods_that_evict(engine: Live, model: Model) -> None:
    constraint = Form("regex", "(one two three four ){3}end")
    answer = engine.run(engine.answer(PROMPTS[1], sampling=GREEDY, constraint=constraint))
    assert answer.text == "one two three four " * 3 + "end"
    words = {"keep": "streaming", "keep_budget": "60"}
    fields = {"max_tokens": 40, "sampling": GREEDY, "reading": Reading(words=words)}
    answers = engine.run(at_once(engine, PROMPTS[:2], **fields))
    for answer, prompt in zip(answers, PROMPTS):
        with model.context(2048, keep=kvarn.Streaming(60)) as context:
            text = "".join(context.generate(prompt, 40, kvarn.Sampler(temp=0)))
        assert answer.text == text


def test_the_next_turn_goes_on_after_tokens_that_were_drafted(model: Model, tmp_path: Path) -> None:
    """From memory and from the library on disk: no guess that was wrong stands in what is kept."""
    for n_bytes in (0, 1 << 30):
        start = start_of(tmp_path, words={"draft": "ngram"}, cache_bytes=n_bytes)
        with live(start) as engine:
            first = engine.run(engine.answer(PROMPTS[0], max_tokens=40, sampling=GREEDY))
            prompt = PROMPTS[0] + first.text + " His dog"
            second = engine.run(engine.answer(prompt, max_tokens=20, sampling=GREEDY))
        assert second.text == alone(model, prompt, 20, kvarn.Sampler(temp=0))
        assert second.done is not None and second.done.n_cached > 0
