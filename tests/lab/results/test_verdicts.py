"""A verdict follows from the interval alone; its rule is computed here once more, by hand."""

import random
from dataclasses import replace

import pytest

from kvarn.evals.quality.intervals import difference_interval, t_quantile
from lab.results.data import Measurement
from lab.results.page.verdicts import (
    EARLY,
    HIGH,
    LOW,
    OPEN,
    REFUTED,
    REPRODUCED,
    UNTOLD,
    WEAK,
    contrast,
    gated,
    is_weak,
    judge,
)
from lab.results.plan import Arm, Claim, Results, Section

FULL, ARM = Arm(), Arm("topk", "1%")
CLAIM = Claim("as good", "table 1", {"topk 1%": 1.0, "full": -1.0}, at_least=-0.05)
SECTION = Section(
    "one", "topk", "One", "", "mini", ("needle",), (4096,), 20, 50, (FULL, ARM), (CLAIM,)
)


def measured(full: float, arm: float, contexts: int = 20, questions: int = 50) -> Measurement:
    """Right answers at random, with these chances."""
    rng = random.Random(f"{full} {arm}")
    cells = []
    for number in range(contexts):
        for name, chance in (("full", full), ("topk 1%", arm)):
            scores = [float(rng.random() < chance) for _ in range(questions)]
            cells.append(
                {
                    "task": "needle", "length": 4096, "context": number, "arm": name,
                    "scores": scores, "read": 0.02 + 0.001 * (number % 2), "error": None,
                    "covered": None, "entropy": None,
                }
            )  # fmt: skip
    return Measurement((), contexts, 0.0, cells)


def test_the_whole_interval_decides() -> None:
    assert judge(SECTION, CLAIM, measured(1.0, 0.98)).word == REPRODUCED
    assert judge(SECTION, CLAIM, measured(1.0, 0.5)).word == REFUTED
    found = judge(SECTION, CLAIM, measured(1.0, 0.95))
    assert found.word == UNTOLD
    assert found.interval is not None and found.interval[0] < -0.05 < found.interval[1]


def test_few_questions_decide_nothing() -> None:
    few = replace(SECTION, contexts=2)
    assert judge(few, CLAIM, measured(0.8, 0.8, contexts=2, questions=3)).word == UNTOLD
    assert judge(SECTION, CLAIM, measured(1.0, 1.0, contexts=1)).word == OPEN
    assert judge(SECTION, CLAIM, Measurement()).word == OPEN


def test_a_section_has_verdicts_when_it_is_measured_to_the_end() -> None:
    found = judge(SECTION, CLAIM, measured(1.0, 1.0, contexts=19))
    assert found.word == EARLY
    assert found.interval is not None and found.interval[0] > -0.05


def test_the_interval_is_that_of_paired_differences() -> None:
    found = judge(SECTION, CLAIM, one := measured(0.9, 0.8))
    assert found.interval == difference_interval(contrast(one, CLAIM, "needle", 4096))
    assert found.n == 1000 and found.contexts == 20


def test_a_share_of_full_attention_is_a_contrast_of_scores() -> None:
    claim = replace(CLAIM, contrast={"topk 1%": 1.0, "full": -0.95}, at_least=0.0)
    one = measured(0.9, 0.9)
    right = {
        name: sum(sum(c["scores"]) for c in one.cells if c["arm"] == name) / 1000
        for name in ("full", "topk 1%")
    }
    found = judge(SECTION, claim, one)
    assert found.value == pytest.approx(right["topk 1%"] - 0.95 * right["full"])
    assert found.interval is not None and found.interval[0] < found.value < found.interval[1]


def test_nothing_is_concluded_where_full_attention_answers_too_little() -> None:
    assert is_weak(measured(0.5, 0.5), "needle", 4096)
    assert not is_weak(measured(0.7, 0.1), "needle", 4096)
    assert judge(SECTION, CLAIM, measured(0.5, 0.5)).word == WEAK


def test_arms_on_the_floor_or_the_ceiling_are_not_told_apart() -> None:
    """Their figures stay; of other measures than scores, all are interpreted."""
    found = judge(SECTION, CLAIM, measured(1.0, 1.0))
    assert found.word == HIGH and found.value == 0 and found.interval is not None
    arms = (FULL, ARM, Arm("hash", "1%"))
    section, claim = replace(SECTION, arms=arms), replace(CLAIM, contrast={"topk 1%": 1, "h": -1})
    one, low = measured(1.0, 0.2), measured(0.2, 0.0)
    cells = [{**cell, "arm": "h"} for cell in low.cells if cell["arm"] == "full"]
    both = replace(one, cells=[*one.cells, *cells])
    assert judge(section, claim, both).word == LOW
    assert judge(section, replace(claim, measure="read"), both).word == REPRODUCED
    assert judge(section, CLAIM, both).word == REFUTED  # beside full attention, 20 points are few


def test_studies_keep_the_tasks_that_full_attention_answers() -> None:
    study = replace(SECTION, name="study", kind="layers", tasks=("needle", "kv", "cwe"))
    asked = replace(SECTION, tasks=("needle", "kv"))
    cells = [*measured(1.0, 1.0).cells]
    cells += [{**cell, "task": "kv"} for cell in measured(0.5, 0.5).cells]
    seen = [{"task": task, "length": 4096, "arm": "a"} for task in study.tasks]
    results = Results({}, (), (asked, study))
    given = {"one": Measurement((), 20, 0.0, cells), "study": Measurement((), 20, 0.0, seen)}
    found = gated(results, given)
    assert found["one"] == given["one"]
    assert [cell["task"] for cell in found["study"].cells] == ["needle"]
    other = Results({}, (), (asked, replace(study, model="gqa")))
    assert not gated(other, given)["study"].cells


def test_full_attention_may_have_read_its_prompts_sparsely() -> None:
    cells = [{**cell, "arm": f"{cell['arm']} prefill sparse"} for cell in measured(0.5, 0.5).cells]
    assert is_weak(replace(measured(0.5, 0.5), cells=cells), "needle", 4096)


def test_other_measures_have_the_t_interval_of_contexts() -> None:
    claim = replace(CLAIM, contrast={"topk 1%": 1.0}, measure="read", at_least=0.02, at_most=0.04)
    found = judge(SECTION, claim, measured(1.0, 1.0))
    half = t_quantile(19) * 0.0005 / 19**0.5
    assert found.interval == pytest.approx((0.0205 - half, 0.0205 + half))
    assert found.word == REPRODUCED
    narrow = replace(claim, at_least=None, at_most=0.01)
    assert judge(SECTION, narrow, measured(1.0, 1.0)).word == REFUTED
