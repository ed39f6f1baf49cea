"""Scores of a model that is known to recall: a copier, whose every answer can be foretold."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from kvarn.evals.quality import Arm, Plan, evaluate, plan
from kvarn.evals.quality.folder import ContextFolder
from kvarn.evals.tasks import Filler, Part, Plain, Question, Sample
from kvarn.runtime.attend import Full, Hash, TopK
from kvarn.runtime.context import Context
from kvarn.runtime.keep import KEEPS
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model

from .copier import write_copier

SMALL = {"budget": 8, "sink": 4, "window": 16}
FULL = Arm()
ARMS = (
    FULL,
    Arm("topk:index=flat", "8", attend=TopK(index="flat", **SMALL)),
    Arm("topk", "8", attend=TopK(**SMALL)),
    Arm("hash:bits=64", "8", attend=Hash(bits=64, **SMALL)),
)


def codes(rng: random.Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """Rows of four letters and four more, no four symbols alike; the first four of some of them."""
    rows: list[str] = []
    seen: set[str] = set()
    while 10 * (len(rows) + 1) <= n_chars:
        letters = rng.choices("abcdefghijklmn", k=8)
        row = "".join([*letters[:4], ":", *letters[4:]])
        fours = {row[i : i + 4] for i in range(6)}
        if not fours & seen:
            seen |= fours
            rows.append(row)
    questions = [
        Question(f"{row[:4]}:", row[5:], (row[5:],)) for row in rng.sample(rows, n_questions)
    ]
    return Sample((Part("\n".join(rows), False),), tuple(questions))


@pytest.fixture(scope="module")
def copier(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("models") / "copier.gguf"
    write_copier(path)
    return load(path)


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setitem(plan.ALL_TASKS, "codes", codes)
    return Plan(("codes",), (1200,), ARMS, Plain(), "plain", 2, 6)


def test_what_finds_the_one_right_token_answers_everything(
    copier: Model, wanted: Plan, tmp_path: Path
) -> None:
    """Query and key of the place sought are alike in all bits, and their product is the largest."""
    rows = list(evaluate(copier, wanted, tmp_path))
    assert [(row.score, row.n) for row in rows] == [(1.0, 12)] * 4
    assert [row.difference for row in rows[1:]] == [0.0] * 3
    sparse = rows[1:]
    assert all(0.015 < row.read < 0.03 for row in sparse)  # type: ignore[operator]


def test_what_was_evicted_is_not_recalled_and_the_rest_is(
    copier: Model, wanted: Plan, tmp_path: Path
) -> None:
    keep = Arm("full", "", "streaming", "50%", Full(), KEEPS["streaming"]("50%"))
    full, streaming = evaluate(copier, replace(wanted, arms=(FULL, keep)), tmp_path)
    assert full.score == 1
    assert streaming.difference == pytest.approx(streaming.score - 1)
    assert streaming.score < 0.8
    near = 0
    for path in tmp_path.iterdir():
        folder = ContextFolder(path)
        text, questions = folder.sample(pytest.fail)
        kept_from = len(text) - 0.5 * len(text)
        for answer in folder.answers()[len(questions) :]:
            place = text.index(questions[answer.question].text)
            if abs(place - kept_from) < 60:
                near += 1
            else:
                assert answer.score == (place > kept_from)
    assert near < 4


def test_inside_the_prompt_a_question_is_read_at_once(
    copier: Model, wanted: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = Arm("full", "", "streaming", "50%", Full(), KEEPS["streaming"]("50%"))
    decode, steps, scores = Context.decode, [0], {}
    monkeypatch.setattr(Context, "decode", lambda *args: (steps.append(1), decode(*args))[1])
    for inside in (False, True):
        asked = replace(wanted, arms=(FULL, ARMS[1], keep), inside=inside)
        rows = list(evaluate(copier, asked, tmp_path))
        assert rows[0].as_dict()["question"] == ("inside" if inside else "apart")
        scores[inside] = [row.score for row in rows], sum(steps)
        steps.clear()
    assert scores[True][0] == scores[False][0]
    n_questions, n_tokens = 3 * 12, len("\nabcd:")
    assert scores[False][1] - scores[True][1] == n_questions * n_tokens
