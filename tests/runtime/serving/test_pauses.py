"""Answers beside a prompt that is read: they decode, end and fail while its pass is paused.

The oracle is a context of each alone. The scheduler's clock counts how often it is asked, so that
answers decode once or twice in each pause, however fast the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import kvarn
from kvarn.runtime.context.batch import Batch
from kvarn.runtime.draft import DraftModel, Ngram
from kvarn.runtime.draft.pass_times import PassTimes
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.serving import scheduler as scheduling
from kvarn.runtime.serving.protocol import Done, Pieces
from kvarn.runtime.serving.tasks import AnswerTask
from kvarn.system.errors import KvarnError

from ...models import tiny_cases, tiny_models
from .beside import N_PROMPT, READER, Serving, alone, prompt_of, prompts_of


def check(serving: Serving, prompts: list[list[int]], n_new: int, **options: Any) -> None:
    """All have answered as they do alone, and some of their tokens came in pauses."""
    for (number, tokens), prompt in zip(sorted(serving.tokens.items()), prompts, strict=True):
        n = 6 if number == READER else n_new
        assert tokens == alone(serving.model, prompt, n, **options), number
    assert set(serving.ends.values()) == {"length"}
    assert all(n >= 2 for number, n in serving.in_pause.items() if number != READER)


@pytest.fixture(autouse=True)
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading from pause to pause takes a second of 60% for answers, and so does a pass of them.
    Drafts weigh what passes usually take."""
    clock = SimpleNamespace(perf_counter=partial(next, count(0.0)))
    clock.monotonic, clock.sleep = time.monotonic, time.sleep
    monkeypatch.setattr(scheduling, "time", clock)
    monkeypatch.setattr(scheduling, "SHARE", 0.6)
    monkeypatch.setattr(PassTimes, "add", lambda self, n_tokens, seconds: False)


@pytest.fixture
def serving(tmp_path: Path) -> Serving:
    return Serving(load(threads=1), tmp_path)


METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "full": ({}, {}),
    "topk": ({"method": "topk", "budget": 40}, {"attend": kvarn.TopK(budget=40)}),
    "hash": ({"method": "hash", "budget": 40}, {"attend": kvarn.Hash(budget=40)}),
    "streaming": ({"keep": "streaming", "keep_budget": 300}, {"keep": kvarn.Streaming(300)}),
    "h2o": ({"keep": "h2o", "keep_budget": 300}, {"keep": kvarn.H2O(300)}),
}


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("n", [2, 3])
def test_greedy_ids_are_those_alone(serving: Serving, kind: str, n: int) -> None:
    """One stream and two beside a prompt of more than a chunk, all by one method."""
    words, options = METHODS[kind]
    prompts = prompts_of(serving.model, n)
    serving.run(prompts, 60, [words] * n)
    check(serving, prompts, 60, **options)


@pytest.mark.parametrize("name", ["qwen35", "lfm2", "falcon-h1", "qwen3moe", "gemma3", "deepseek2"])
@pytest.mark.parametrize("drafting", [False, True])
def test_models_of_all_kinds(name: str, drafting: bool, tmp_path: Path) -> None:
    """With drafts, answers whose states have to be read again wait for the end of the pass."""
    tiny_models.write(tmp_path / "m.gguf", next(c for c in tiny_cases.CASES if c.name == name), 1)
    model = load(tmp_path / "m.gguf", threads=1)
    serving = Serving(model, tmp_path, draft=Ngram() if drafting else None)
    prompts = prompts_of(model)
    serving.run(prompts, 80)
    check(serving, prompts, 80)


@pytest.mark.usefixtures("longest_drafts")
def test_a_model_that_drafts(large: Model, small: Model, tmp_path: Path) -> None:
    """It guesses in pauses, too; its own prompts are read in passes that do not pause."""
    serving = Serving(large, tmp_path, draft=DraftModel(small, max_tokens=5))
    prompts = prompts_of(large)
    serving.run(prompts, 60)
    check(serving, prompts, 60)
    assert serving.scheduler._counts["accepted_tokens"] > 0


def test_what_begins_with_the_text_that_is_read(tmp_path: Path) -> None:
    """On disk: the reader's pack goes on from an answer's, which is saved and closed meanwhile;
    a second time all is found there."""
    model = load(threads=1)
    first = prompt_of(model, 300, 1)
    prompts = [[*first, 5], [*first, 6, 7], [*first, *prompt_of(model, N_PROMPT, 2)]]
    serving = Serving(model, tmp_path, 64 << 20)
    serving.run(prompts, 40)
    check(serving, prompts, 40)
    again = Serving(model, tmp_path, 64 << 20)
    again.run(prompts, 40)
    assert again.tokens == serving.tokens


def test_an_answer_ends_in_a_pause(serving: Serving) -> None:
    """Its end is told while the prompt is read, not after it."""
    ended_at: list[tuple[bool, int]] = []

    def watch(message: msgspec.Struct) -> None:
        if isinstance(message, Done) and message.id == 2:
            ended_at.append((serving.reads_in_pause, len(serving.tokens[READER])))

    serving.watch = watch
    prompts = prompts_of(serving.model)
    serving.run(prompts, 5)
    check_ids = [alone(serving.model, prompt, n) for prompt, n in zip(prompts, (5, 5, 6))]
    assert [ids for _, ids in sorted(serving.tokens.items())] == check_ids
    assert ended_at == [(True, 0)]


def in_pause(serving: Serving, number: int, do: Callable[[], None]) -> Callable[[Any], None]:
    """What does something once, with the second piece of an answer in a pause of the reader."""
    left = [2]

    def watch(message: msgspec.Struct) -> None:
        if serving.reads_in_pause and isinstance(message, Pieces) and message.id == number:
            left[0] -= 1
            if not left[0]:
                do()

    return watch


@pytest.mark.parametrize("kind", ["full", "streaming"])
def test_the_prompt_is_cancelled_in_a_pause(serving: Serving, kind: str) -> None:
    """It has not begun to answer; where tokens are evicted, its pass runs to its end first."""
    words, options = METHODS[kind]
    prompts = prompts_of(serving.model)
    serving.watch = in_pause(serving, 1, lambda: serving.flags.end(READER))
    serving.run(prompts, 60, [words] * 3)
    assert serving.ends == {1: "length", 2: "length", READER: "cancelled"}
    assert not serving.tokens[READER]
    for number in (1, 2):
        assert serving.tokens[number] == alone(serving.model, prompts[number - 1], 60, **options)


def test_an_answer_is_cancelled_in_a_pause(serving: Serving) -> None:
    """At once: it says no more; the other one and the prompt go on."""
    prompts = prompts_of(serving.model)
    said: list[int] = []

    def end() -> None:
        serving.flags.end(1)
        said.append(len(serving.tokens[1]))

    serving.watch = in_pause(serving, 1, end)
    serving.run(prompts, 60)
    assert serving.ends == {1: "cancelled", 2: "length", READER: "length"}
    assert said == [len(serving.tokens[1])]
    for number, n in ((2, 60), (READER, 6)):
        prompt = prompts[-1] if number == READER else prompts[number - 1]
        assert serving.tokens[number] == alone(serving.model, prompt, n)


def test_an_error_of_an_answer_ends_it_alone(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = AnswerTask.sample

    def failing(task: AnswerTask) -> None:
        if task.id == 1 and serving.reads_in_pause:
            raise KvarnError("broken in a pause")
        sample(task)

    monkeypatch.setattr(AnswerTask, "sample", failing)
    prompts = prompts_of(serving.model)
    serving.run(prompts, 60)
    assert serving.ends == {1: "broken in a pause", 2: "length", READER: "length"}
    assert serving.tokens[2] == alone(serving.model, prompts[1], 60)
    assert serving.tokens[READER] == alone(serving.model, prompts[-1], 6)


def test_a_pass_that_fails_in_a_pause_ends_those_at_fault(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others decode again, each alone."""
    decode = Batch.decode_together

    def failing(batch: Batch, contexts: Any, *rest: Any) -> None:
        if serving.reads_in_pause and any(
            context.tokens[: len(first)] == first for context in contexts
        ):
            raise KvarnError("no pass")
        decode(batch, contexts, *rest)

    monkeypatch.setattr(Batch, "decode_together", failing)
    prompts = prompts_of(serving.model)
    first = prompts[0]
    serving.run(prompts, 60)
    assert serving.ends == {1: "no pass", 2: "length", READER: "length"}
    assert serving.tokens[2] == alone(serving.model, prompts[1], 60)
    assert serving.tokens[READER] == alone(serving.model, prompts[-1], 6)


def test_all_end_where_the_server_stops_in_a_pause(serving: Serving) -> None:
    prompts = prompts_of(serving.model)
    serving.watch = in_pause(serving, 1, lambda: serving.scheduler.stop(0.0))
    serving.run(prompts, 60)
    assert serving.ends == dict.fromkeys((1, 2, READER), "cancelled")
    assert not serving.tokens[READER] and not serving.scheduler._active


@pytest.mark.parametrize(
    ("can_pause", "others", "answers", "n_tokens"),
    [
        (True, False, False, 512),
        (True, False, True, 256),
        (True, True, True, 64),
        (True, True, False, 64),
        (False, False, True, 64),
    ],
)
def test_slices_take_seconds_that_others_can_wait(
    can_pause: bool, others: bool, answers: bool, n_tokens: int
) -> None:
    """At 50 tokens a second: 6 s beside answers for which a prompt pauses, 1.5 s beside others."""
    batch: Any = SimpleNamespace(can_pause=can_pause)
    nothing: Any = None
    scheduler = scheduling.Scheduler(1, batch, nothing, nothing)
    scheduler._speed = 50.0
    assert scheduler._slice(others, answers) == n_tokens
