"""Answers for which a smaller model guesses, several at a time: the ids of contexts without it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

import kvarn
from kvarn.runtime.context.batch import Batch
from kvarn.runtime.draft import DraftModel
from kvarn.runtime.engine import on_engine
from kvarn.runtime.model import Model
from kvarn.runtime.serving.drafts import LEAST_SHARED, Drafts
from kvarn.runtime.serving.flags import Flags
from kvarn.runtime.serving.library import Library
from kvarn.runtime.serving.protocol import Done, Generate, Pieces, Refused
from kvarn.runtime.serving.requests.preparing import RequestPreparer
from kvarn.runtime.serving.scheduler import Scheduler
from kvarn.runtime.serving.tasks import AnswerTask
from kvarn.runtime.store import StoreError

N_CTX, N_NEW = 1024, 24

pytestmark = pytest.mark.usefixtures("longest_drafts")


class Running:
    """What generates for several prompts at a time, with the same drafts each time."""

    def __init__(self, model: Model, drafts: Drafts, folder: Path) -> None:
        self._model, self._drafts, self._folder = model, drafts, folder
        self.counters: dict[str, float] = {}

    def ids(self, *prompts: list[int]) -> list[list[int]]:
        """Those that follow each of the prompts."""
        ids: dict[int, list[int]] = {number: [] for number in range(1, len(prompts) + 1)}
        left, refused = set(ids), list[str]()

        def take(message: msgspec.Struct) -> None:
            if isinstance(message, Pieces):
                ids[message.id] += message.tokens
            elif isinstance(message, Done | Refused):
                refused.extend([message.message] if isinstance(message, Refused) else [])
                left.discard(message.id)
                if not left:
                    scheduler.stop(0.0)

        library = Library(self._model, self._folder, 0, refused.append)
        preparing = RequestPreparer(self._model, N_CTX, {}, library.answers)
        scheduler = Scheduler(4, Batch(self._model), library, take)
        flags, path = Flags.create()
        ways = library, flags, take, lambda *ended: None, self._drafts
        options = {"sampling": {"temp": 0.0}, "special": True, "ignore_eos": True}
        for number, prompt in enumerate(prompts, 1):
            asked = Generate(number, number, prompt, N_NEW, **options)
            scheduler.put(AnswerTask(preparing.generate(asked), *ways))
        on_engine(scheduler.run)
        self.counters = scheduler._counts
        path.unlink()
        assert not refused
        return [ids[number] for number in sorted(ids)]


@pytest.fixture(params=[True, False], ids=["equal", "another"])
def running(request: pytest.FixtureRequest, large: Model, small: Model, tmp_path: Path) -> Running:
    model = kvarn.load(large.path) if request.param else small
    draft = DraftModel(model, max_tokens=7, min_probability=0)
    return Running(large, Drafts(draft, 4), tmp_path)


def prompt_of(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 250, n).tolist()


def alone(model: Model, prompt: list[int]) -> list[int]:
    with model.context(N_CTX) as context:
        return list(context.generate_ids(prompt, N_NEW, kvarn.Sampler(temp=0), False))


@pytest.mark.parametrize("sizes", [[700], [9, 530], [40, 1, 300, 90]])
def test_greedy_ids_are_those_without_a_draft(
    running: Running, large: Model, sizes: list[int]
) -> None:
    """The first answers of each, and what goes on after them, beside others."""
    prompts = [prompt_of(n, n) for n in sizes]
    first = running.ids(*prompts)
    assert first == [alone(large, prompt) for prompt in prompts]
    longer = [[*prompt, *ids, 7, 8] for prompt, ids in zip(prompts, first)]
    assert running.ids(*longer[::-1]) == [alone(large, prompt) for prompt in longer[::-1]]


def test_guesses_are_made_and_are_right(running: Running) -> None:
    running.ids(prompt_of(200, 1))
    counters = running.counters
    assert 0 < counters["accepted_tokens"] <= counters["drafted_tokens"]


def test_where_memory_has_no_room_for_a_draft_answers_come_without(
    large: Model, small: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreError("memory has no room")

    told: list[str] = []
    running = Running(large, Drafts(DraftModel(small, 7, 0), 4, told.append), tmp_path)
    prompts = [prompt_of(30, 1), prompt_of(90, 2)]
    with monkeypatch.context() as patch:
        patch.setattr(small, "context", full)
        assert running.ids(*prompts) == [alone(large, prompt) for prompt in prompts]
        assert running.counters["drafted_tokens"] == 0
    assert told == ["answers may come without a draft: memory has no room"]
    running.ids(prompts[0])  # there is room again
    assert running.counters["drafted_tokens"] > 0


def test_an_answer_takes_the_draft_that_knows_its_prompt(large: Model, small: Model) -> None:
    """Chats that begin alike have their own, as many as there are answers at a time."""
    drafts, chats = Drafts(DraftModel(small), 2), [prompt_of(300, 1), prompt_of(300, 2)]
    begins = chats[0][: LEAST_SHARED - 1]
    chats = [begins + chat for chat in chats]

    def answered(prompt: list[int]) -> object:
        draft = drafts.acquire(prompt)
        with large.context(N_CTX) as context:
            context.prefill(prompt)
            draft.prepare(context)
            while not draft.read_some(context, 100):
                pass
        drafts.release(draft)
        return draft

    first = answered(chats[0])
    assert answered([*chats[0], 5]) is first
    second = answered(chats[1])
    assert first is not second
    assert [answered([*chat, 5]) for chat in chats] == [first, second]
    assert answered(prompt_of(200, 3)) in (first, second)
