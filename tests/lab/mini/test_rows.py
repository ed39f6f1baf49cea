"""Rows of a training step: what they hold, where the loss is, the same for the same step."""

import random

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="only needed to train: pip install tokenizers")

from kvarn.evals.tasks import TASKS, Plain, Sample, Task
from lab.mini.texts.data import Corpus, new_tokenizer
from lab.mini.texts.rows import MIXED, MOST_TEXT, REPLY, SINGLE, TEXT, Rows, Stage

STAGE = Stage(1.0, 200, 4, repeats=0.2, recall=0.5, tasks=MIXED)
PARAGRAPH = "The number of the old bed is 48213. She went to the mill, and came back late.\n"


@pytest.fixture(scope="module")
def rows() -> Rows:
    tokenizer = new_tokenizer([PARAGRAPH], 300)
    text = Corpus.encode(tokenizer, [PARAGRAPH * 600])
    return Rows(tokenizer, text.ids, Plain(), seed=3)


def test_a_step_is_a_function_of_seed_and_number(rows: Rows) -> None:
    again = Rows(rows.tokenizer, rows.text, Plain(), seed=3)
    other = Rows(rows.tokenizer, rows.text, Plain(), seed=4)
    batch = rows.batch(7, STAGE)
    np.testing.assert_array_equal(again.batch(7, STAGE).ids, batch.ids)
    np.testing.assert_array_equal(again.batch(7, STAGE).weights, batch.weights)
    assert (other.batch(7, STAGE).ids != batch.ids).any()
    assert (rows.batch(8, STAGE).ids != batch.ids).any()


def test_rows_are_full_and_open_with_the_first_token(rows: Rows) -> None:
    batch = rows.batch(0, Stage(1.0, 300, 20, repeats=0.2, recall=0.5, tasks=MIXED))
    assert batch.ids.shape == (20, 301) and batch.weights.shape == (20, 300)
    assert (batch.ids[:, 0] == rows.bos).all()
    assert set(np.unique(batch.weights)) <= {np.float32(w) for w in (0, 0.1, TEXT, REPLY)}


@pytest.mark.parametrize("task", TASKS)
def test_replies_alone_weigh_most_and_facts_nothing(rows: Rows, task: str) -> None:
    sample = rows.sample(random.Random(5), TASKS[task], 400, 8)
    spelt = {0.0: "", 0.1: "", TEXT: "", REPLY: ""}
    for ids, weight in rows.recall(sample, random.Random(6)):
        spelt[weight] += rows.tokenizer.decode(ids)
    assert len(rows.tokenizer.encode(sample.context).ids) <= 400
    for question in sample.questions:
        assert question.reply in spelt[REPLY] and question.text in spelt[0.1]
    for part in sample.parts:
        assert part.text in spelt[TEXT if part.is_foreseeable else 0.0]


def test_a_stage_draws_its_own_tasks(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def sample(
        self: Rows, rng: random.Random, task: Task, n_tokens: int, n_questions: int
    ) -> Sample:
        drawn.append(task)
        return Sample((), ())

    monkeypatch.setattr(Rows, "sample", sample)
    rows.batch(0, Stage(1.0, 200, 40, 0.0, 1.0, {"kv": 0.75, "copy": 0.25}))
    assert len(drawn) == 40 and set(drawn) == {TASKS["kv"], TASKS["copy"]}
    assert drawn.count(TASKS["kv"]) > 20


def test_facts_of_a_step_stand_dense_and_thin(rows: Rows) -> None:
    batch = rows.batch(0, Stage(1.0, 2000, 20, 0.0, 1.0, {"needle": 1.0}))
    facts = (batch.weights == 0).sum(1)
    assert facts.max() > 4 * facts.min()


def test_repeats_are_read_once_before_they_count(rows: Rows) -> None:
    batch = rows.batch(0, Stage(1.0, 128, 20, 1.0, 0.0, MIXED))
    for ids, weights in zip(batch.ids, batch.weights, strict=True):
        n = int((weights == 0).sum())
        assert 8 <= n <= 128
        np.testing.assert_array_equal(ids[1 + n :], ids[1:-n])
        assert (weights[:n] == 0).all() and (weights[n:] == TEXT).all()


def test_long_rows_draw_their_targets(rows: Rows) -> None:
    weights = rows.batch(0, Stage(1.0, 4 * MOST_TEXT, 1, 0.0, 0.0, MIXED)).weights
    assert 0.8 * MOST_TEXT < (weights == TEXT).sum() < 1.2 * MOST_TEXT


def test_every_task_is_trained() -> None:
    assert MIXED.keys() == TASKS.keys() >= SINGLE.keys()
    for shares in (SINGLE, MIXED):
        assert sum(shares.values()) == pytest.approx(1.0)
