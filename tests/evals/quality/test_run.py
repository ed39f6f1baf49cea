"""An evaluation as a whole: what is asked, of what context, how often, and what is kept."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvarn.evals.quality import answer_free, evaluate, plan
from kvarn.evals.quality.asking import Asker
from kvarn.evals.quality.folder import ContextFolder
from kvarn.evals.tasks import ALL_TASKS, Filler, Question, Sample
from kvarn.runtime.attend import TopK
from kvarn.runtime.model import Model
from kvarn.runtime.packs.pack import pack_info
from kvarn.runtime.prefill import SparsePrefill
from kvarn.system.errors import KvarnError

from .runs import FLAT, FULL, HASH, PLAN, SPARSE, STREAMING, Steps, answers_in, run


def greedy(model: Model, text: str, n: int) -> str:
    """What follows a text that is read at once, with exact attention."""
    context = model.context(len(text) + n + 8)
    logits, ids = context.prefill(text), []
    for _ in range(n):
        ids.append(int(np.argmax(logits)))
        logits = context.decode(ids[-1])
    return model.tokenizer.decode(ids)


def test_every_arm_answers_every_question_once(tiny: Model, tmp_path: Path) -> None:
    rows, observer = run(tiny, PLAN, tmp_path)
    assert [(row.cell.task, row.arm) for row in rows] == [
        (task, arm) for task in ("needle", "kv", "all tasks") for arm in (FULL, HASH)
    ]
    assert [(row.n, row.contexts) for row in rows] == [(4, 2)] * 4 + [(8, 4)] * 2
    assert observer.steps[-1] == (8 * 600, 8 * 600)
    assert observer.lines[0].startswith("hash: this model has no learned encoders")
    assert observer.lines[1].endswith(f"of KV caches stay in {tmp_path}")
    folders = sorted(tmp_path.iterdir())
    assert [folder.name[:-16] for folder in folders] == [
        "kv-600", "kv-600", "needle-600", "needle-600",
    ]  # fmt: skip
    for folder in folders:
        answers = answers_in(folder)
        asked = [(answer.arm, answer.question) for answer in answers]
        assert asked == [(arm, i) for arm in ("full", "hash 20") for i in range(2)]
        assert all(answer.read is None for answer in answers[:2])
        assert all(0 < answer.read <= answer.covered * 1.5 < 1 for answer in answers[2:])  # type: ignore[operator]


def test_the_model_answers_as_to_a_context_with_the_question_at_its_end(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers asked for are what the model writes when it reads all at once."""

    def told(rng: random.Random, n_chars: int, n: int, filler: Filler) -> Sample:
        sample = ALL_TASKS["needle"](rng, n_chars, n, filler)
        expected_texts = [greedy(tiny, f"{sample.context}\n{q.text}", 4) for q in sample.questions]
        questions = [
            Question(q.text, expected_texts[i], (expected_texts[i],))
            for i, q in enumerate(sample.questions)
        ]
        wrong = replace(questions[0], answers=("no such answer", questions[0].answers[0]))
        return Sample(sample.parts, (wrong, *questions[1:]))

    monkeypatch.setitem(plan.ALL_TASKS, "told", told)
    (row,), _ = run(tiny, replace(PLAN, tasks=("told",), arms=(FULL,)), tmp_path)
    assert row.score == pytest.approx((0.5 + 1) / 2)


def test_a_context_is_read_once(tiny: Model, tmp_path: Path) -> None:
    first, observer = run(tiny, PLAN, tmp_path)
    assert observer.read == 2 * 2 * 2  # chunks of four contexts
    again, observer = run(tiny, PLAN, tmp_path)
    assert (again, observer.read, observer.lines[:-1]) == (first, 0, [])
    more, observer = run(tiny, replace(PLAN, arms=(FULL, HASH, FLAT)), tmp_path)
    assert observer.read == 0
    assert [row for row in more if row.arm != FLAT] == first


def test_a_context_that_another_process_has_taken_is_left_to_it(
    tiny: Model, tmp_path: Path
) -> None:
    wanted = replace(PLAN, tasks=("needle",))
    rows, _ = run(tiny, wanted, tmp_path / "whole")
    folders = [
        ContextFolder(tmp_path / "shared" / wanted.cells()[0].key(wanted, number, tiny))
        for number in range(2)
    ]
    with folders[0].lock() as is_free:
        assert is_free
        answer_free(tiny, wanted, tmp_path / "shared", print)
        assert not folders[0].answers() and len(folders[1].answers()) == 4
    observer = Steps()
    assert list(evaluate(tiny, wanted, tmp_path / "shared", observer, shared=True)) == rows
    assert observer.steps[-1] == (4 * 600, 4 * 600)


def test_contexts_are_read_once_in_each_way(tiny: Model, tmp_path: Path) -> None:
    wanted = replace(PLAN, tasks=("kv",), lengths=(1300,), n_contexts=1, arms=(FULL, SPARSE))
    rows, observer = run(tiny, wanted, tmp_path)
    (folder,) = tmp_path.iterdir()
    packs = [pack_info(path) for path in sorted(folder.glob("pack*"))]
    assert [pack.prefill.split(" (")[0] for pack in packs] == ["exact", "sparse"]
    read = observer.read
    assert run(tiny, wanted, tmp_path)[0] == rows
    assert not [line for line in observer.lines if "softmax" in line]
    hashed = replace(SPARSE, method="hash", attend=HASH.attend)
    more, observer = run(tiny, replace(wanted, arms=(FULL, SPARSE, hashed)), tmp_path)
    assert (more[:2], observer.read) == (rows, 0) and read
    assert [answer.arm for answer in answers_in(folder)] == [
        name
        for name in ("full", "full prefill sparse:k=16", "hash prefill sparse:k=16")
        for _ in range(2)
    ]
    run(tiny, replace(wanted, keep_packs=False), tmp_path)
    assert [path.name for path in folder.glob("pack*")] == []


def test_a_probe_of_the_reading_is_told(tiny: Model, tmp_path: Path) -> None:
    probing = replace(SPARSE, reading=replace(SPARSE.reading, probe=64))
    wanted = replace(PLAN, tasks=("kv",), lengths=(1300,), n_contexts=1, arms=(probing,))
    _, observer = run(tiny, wanted, tmp_path)
    (folder,) = tmp_path.iterdir()
    told = [line for line in observer.lines if "of the softmax covered" in line]
    (line,) = told  # the last layer computes only the last tokens of a chunk, and probes none
    assert line.startswith(f"{folder.name}, {probing}: layer 0: ")


def test_a_question_about_a_sparse_context_is_decoded_exactly(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posed, pose = [], Asker.read_question

    def spy(self, ids) -> None:
        pose(self, ids)
        posed.append((self._arm, ids, self.context.logits.copy()))

    monkeypatch.setattr(Asker, "read_question", spy)
    wanted = replace(PLAN, tasks=("kv",), lengths=(1300,), n_contexts=1, arms=(FULL, SPARSE))
    run(tiny, wanted, tmp_path)
    (path,) = tmp_path.iterdir()
    text, _ = ContextFolder(path).sample(pytest.fail)
    assert [arm for arm, *_ in posed] == [FULL, FULL, SPARSE, SPARSE]
    for arm, ids, logits in posed:
        context = tiny.context(2000, prefill=arm.reading)
        context.prefill(text)
        for token in ids:
            context.decode(token)
        np.testing.assert_array_equal(context.logits, logits)
    assert not np.array_equal(posed[0][2], posed[2][2])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tasks": ("dance",)}, "unknown task 'dance', expected some of needle, kv"),
        ({"arms": (FULL, FULL)}, "full is asked for twice"),
        (
            {"arms": (replace(STREAMING, method="topk", attend=TopK(tail="means")),)},
            "40%: what evicts cannot be combined with topk tail=means attention",
        ),
        (
            {"arms": (replace(STREAMING, reading=SparsePrefill()),)},
            "prefill sparse may read any token before, and keep streaming evicts some",
        ),
    ],
)
def test_plans_that_cannot_be_are_refused(changes: dict, expected: str) -> None:
    with pytest.raises(KvarnError, match=expected):
        replace(PLAN, **changes)


def test_a_length_without_questions_is_refused(tiny: Model, tmp_path: Path) -> None:
    with pytest.raises(KvarnError, match="task copy has no question about 120 tokens"):
        run(tiny, replace(PLAN, tasks=("copy",), lengths=(120,)), tmp_path)
