"""Answers that are kept: under which name they are told."""

from dataclasses import replace
from pathlib import Path

from kvarn.evals.quality import Arm, Plan, evaluate
from kvarn.evals.tasks import Plain
from kvarn.runtime.attend import Full
from kvarn.runtime.keep import KEEPS, HashEvict
from kvarn.runtime.model import Model

PLAN = Plan(("kv",), (600,), (), Plain(), "plain", 2, 2)


def test_an_arm_that_names_a_default_gets_the_kept_answers_under_its_own_name(
    tiny: Model, tmp_path: Path
) -> None:
    """`hashevict` and `hashevict:bits=16` are the same method: asked once, told under both."""
    plain = Arm("full", "", "hashevict", "40%", Full(), KEEPS["hashevict"]("40%"))
    named = Arm("full", "", "hashevict:bits=16", "40%", Full(), HashEvict("40%", bits=16))
    told: list[list[str]] = []
    for arms in ((plain,), (plain, named)):
        told.append([])
        rows = list(
            evaluate(
                tiny, replace(PLAN, arms=arms), tmp_path,
                answered=lambda cell, number, answers: told[-1].extend(a.arm for a in answers),
            )
        )  # fmt: skip
    assert told[0] == [str(plain)] * 4
    assert told[1] == ([str(plain)] * 2 + [str(named)] * 2) * 2
    assert rows[0].score == rows[1].score
    kept = [path.read_text() for path in tmp_path.glob("*/answers.jsonl")]
    assert [text.count("\n") for text in kept] == [2, 2]
