"""Scores of a model that is known to recall: a copier, whose every answer can be foretold."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kvarn.evals.quality import Arm, EvalError, Plan, asking, evaluate, plan
from kvarn.evals.quality.folder import ContextFolder
from kvarn.evals.quality.oracle import Oracle
from kvarn.evals.tasks import Filler, Part, Plain, Question, Sample
from kvarn.runtime.attend import Full, Hash, TopK
from kvarn.runtime.context import Context
from kvarn.runtime.keep import KEEPS
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.prefill import Prefill, SparsePrefill, for_questions

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
    return Plan(("codes",), (1200,), ARMS, Plain(), "plain", 2, 6, asked="decoded")


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
    for how in ("decoded", "apart", "inside"):
        asked = replace(wanted, arms=(FULL, ARMS[1], keep), asked=how)
        rows = list(evaluate(copier, asked, tmp_path))
        assert rows[0].as_dict()["question"] == how
        scores[how] = [row.score for row in rows], sum(steps)
        steps.clear()
    assert scores["inside"][0] == scores["apart"][0] == scores["decoded"][0]
    n_questions, n_tokens = 3 * 12, len("\nabcd:")
    # What evicts reads the line break before a question once for a context, as a generated token.
    n_evicting, n_breaks = 12, 2
    assert scores["decoded"][1] - scores["inside"][1] == n_questions * n_tokens - (
        n_evicting - n_breaks
    )
    assert scores["apart"][1] == scores["inside"][1] + n_breaks


def test_apart_from_the_prompt_a_question_is_read_as_run_reads_it(
    copier: Model, wanted: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here sparse prefill begins with the first token, and finds what `decoded` finds."""
    keep = Arm("hash", "8", "streaming", "50%", Hash(**SMALL), KEEPS["streaming"]("50%"))
    contexts: list[Context] = []
    open_asker = asking.open_asker

    def early(*args: object) -> Prefill:
        prefill = for_questions(*args)
        return replace(prefill, k=16, from_=0) if isinstance(prefill, SparsePrefill) else prefill

    @contextmanager
    def listened(*args: object) -> Iterator[asking.Asker]:
        with open_asker(*args) as asker:
            contexts.append(asker.context)
            yield asker

    monkeypatch.setattr("kvarn.runtime.context.planning.plan.for_questions", early)
    monkeypatch.setattr("kvarn.evals.quality.run.open_asker", listened)
    asked = replace(wanted, arms=(FULL, ARMS[3], keep), asked="apart", n_questions=2)
    full, hashed, *_ = evaluate(copier, asked, tmp_path)
    assert (full.score, hashed.score) == (1, 1)
    names = ["exact", "sparse k=16 index=sketch from=0", "exact"]
    assert [context.stats.prefill for context in contexts] == names * 2
    rows = [sum(layer.steps for layer in c.stats.prompt_layers) for c in contexts]
    assert [n > 0 for n in rows] == [False, True, False] * 2


def test_the_oracle_keeps_what_the_question_looks_for(
    copier: Model, wanted: Plan, tmp_path: Path
) -> None:
    """Its queries find the row, and its neighbours are the answer; chance does not."""
    arms = [
        Arm("full", "", name, "10%", Full(), method("10%"))
        for name, method in (("oracle", Oracle), ("random", KEEPS["random"]))
    ]
    asked = replace(wanted, arms=(FULL, *arms), asked="inside")
    full, oracle, chance = evaluate(copier, asked, tmp_path)
    assert (full.score, oracle.score) == (1, 1)
    assert chance.score < 0.5


def test_the_oracle_must_know_the_question(wanted: Plan) -> None:
    arm = Arm("full", "", "oracle", "10%", Full(), Oracle("10%"))
    with pytest.raises(EvalError, match="ask with --question inside"):
        replace(wanted, arms=(FULL, arm), asked="apart")


def test_entropy_is_that_of_the_softmax(copier: Model, wanted: Plan, tmp_path: Path) -> None:
    """The copier is nearly sure: far from the ln 1200 of a query that looks at everything."""
    arm = Arm("topk", "8", attend=TopK(**SMALL, probe=1))
    _, row = evaluate(copier, replace(wanted, arms=(FULL, arm)), tmp_path)
    assert row.entropy is not None and 0 < row.entropy < 7.1
    assert row.covered is not None
