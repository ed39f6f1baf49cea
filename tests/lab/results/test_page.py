"""What the page concludes: which budget suffices, and why a claim fails."""

import random
from dataclasses import replace

import pytest

import kvarn
from kvarn.evals.quality.intervals import t_quantile
from kvarn.system.values import Budget
from lab.results.data import Measurement, read_measurement
from lab.results.page.claims import counts, tables
from lab.results.page.reasons import TELLS, Evidence, cause, causes, failing
from lab.results.page.summary import is_as_full, summary
from lab.results.page.tables import layer_table, lines_of, speed_table
from lab.results.plan import Arm, Claim, Results, Section, read_plan

METHOD, EXACT = "hash 2%", "topk:index=flat 2%"
CLAIM = Claim("as good", "table 1", {METHOD: 1.0, "full": -1.0}, at_least=-0.01, exact=EXACT)
SECTION = Section(
    "beside-full", "hashattention", "One", "", "mini", ("needle",), (4096,), 20, 50,
    (Arm(), Arm("hash", "2%"), Arm("hash", "4%"), Arm("topk:index=flat", "2%")), (CLAIM,),
)  # fmt: skip
RESULTS = Results({}, (), (SECTION,))


def of(found: Measurement, section: Section = SECTION) -> Evidence:
    return Evidence(Results({}, (), (section,)), {section.name: found})


def measured(method: float, exact: float, other: float = 1.0, full: float = 0.99) -> Measurement:
    """Right answers at random, with these chances; hash covers half of the softmax."""
    arms = (
        ("full", full, None, None), (METHOD, method, 0.02, 0.5), ("hash 4%", other, 0.04, 0.9),
        (EXACT, exact, 0.021, 0.97),
    )  # fmt: skip
    cells = []
    for number in range(20):
        for name, chance, read, covered in arms:
            rng = random.Random(f"{number} {chance}")
            cells.append(
                {
                    "task": "needle", "length": 4096, "context": number, "arm": name,
                    "scores": [float(rng.random() < chance) for _ in range(50)],
                    "read": read, "error": covered and 1 - covered, "covered": covered,
                    "entropy": None,
                }
            )  # fmt: skip
    return Measurement((), 20, 0.0, cells)


@pytest.mark.parametrize(
    ("method", "exact", "word"),
    [(0.99, 0.99, ""), (0.5, 0.99, "method"), (0.5, 0.6, "budget"), (0.5, 0.5, "budget")],
)
def test_why_a_claim_fails_follows_from_the_best_choice(
    method: float, exact: float, word: str
) -> None:
    assert cause(of(measured(method, exact)), SECTION, CLAIM) == word
    assert word in TELLS


def test_each_task_has_its_own_cause() -> None:
    """In one, the method falls short; in the other, what no choice of so many tokens can answer."""
    both = replace(SECTION, tasks=("needle", "kv"))
    cells = [*measured(0.5, 0.99).cells]
    cells += [{**cell, "task": "kv"} for cell in measured(0.5, 0.6).cells]
    found = Measurement((), 20, 0.0, cells)
    assert causes(of(found, both), both, CLAIM) == {"method": ["needle"], "budget": ["kv"]}
    assert cause(of(found, both), both, CLAIM) == "method (needle), budget (kv)"
    oracle = "full keep oracle 20%"
    cells = [{**cell, "arm": oracle} if cell["arm"] == EXACT else cell for cell in cells]
    known = replace(both, arms=(*both.arms, Arm("full", "", "oracle", "20%")))
    evicts = replace(CLAIM, exact=oracle)
    evidence = of(Measurement((), 20, 0.0, cells), known)
    assert cause(evidence, known, evicts) == "method (needle), prompt (kv)"


def test_the_best_choice_may_stand_in_another_section() -> None:
    """Where that is not measured to the end, it tells nothing."""
    other = replace(SECTION, name="other")
    results = Results({}, (), (replace(SECTION, arms=SECTION.arms[:3]), other))
    claim, found = replace(CLAIM, exact=f"other: {EXACT}"), measured(0.5, 0.99)
    own = replace(found, cells=[cell for cell in found.cells if cell["arm"] != EXACT])
    for elsewhere, word in (
        (found, "method"),
        (replace(found, contexts=19), "early"),
        (Measurement(), "early"),
    ):
        evidence = Evidence(results, {"beside-full": own, "other": elsewhere})
        assert cause(evidence, results.sections[0], claim) == word


def test_a_claim_that_random_choices_fail_is_the_tasks_fault() -> None:
    """Claimed to lose 20 points, and it loses none."""
    claim = replace(CLAIM, at_least=None, at_most=-0.2)
    assert cause(of(measured(0.97, 0.97, full=0.98)), SECTION, claim) == ""  # on the ceiling
    weak = of(measured(0.85, 0.85, full=0.85))
    assert cause(weak, SECTION, claim) == "tasks"
    assert cause(weak, SECTION, replace(claim, exact="")) == ""


def test_how_much_is_read_follows_from_the_angles_of_keys() -> None:
    """Claimed to read 1%, and it reads 2%."""
    claim = replace(CLAIM, contrast={METHOD: 1.0}, measure="read", at_least=None, at_most=0.01)
    assert cause(of(measured(0.99, 0.99)), SECTION, claim) == "angles"
    assert cause(of(measured(0.99, 0.99)), SECTION, replace(claim, at_most=0.03)) == ""


def test_the_reasons_show_what_was_measured() -> None:
    found = measured(0.5, 0.99)
    page = "\n".join(failing(of(found)))
    assert "- *as good* (table 1): refuted. **method**\n" in page
    assert "\n**method**: the best choice of as many tokens does not fall short" in page
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows] == [f"| `{METHOD}`", f"| `{EXACT}`"]
    line = next(one for one in lines_of(SECTION, found, 4096) if one.arm == METHOD)
    assert line.difference is not None
    assert rows[0][1].startswith(f"{100 * line.difference:+.1f} (")
    assert rows[0][2:] == ["2%", "50.0%", "0.500 |"]
    assert rows[1][2:] == ["2.1%", "97.0%", "0.030 |"]
    assert list(failing(of(measured(0.99, 0.99)))) == []


def test_studies_by_layers_tell_where_attention_is_sharp() -> None:
    """In layer 3, the best choice covers nearly all; in layer 7, it does not."""
    claim = Claim("b is worse", "", {"a": 1.0, "b": -1.0}, at_most=-1, measure="error", exact="a")
    section = replace(SECTION, kind="layers", claims=(claim,), contexts=2)
    cells = [
        {"task": "needle", "length": 4096, "context": context, "layer": layer, "arm": arm,
         "scores": [], "entropy": None, "read": 0.02, "error": 0.1, "covered": covered}
        for context in (0, 1) for layer, covered in ((3, 0.95), (7, 0.6)) for arm in ("a", "b")
    ]  # fmt: skip
    evidence = of(Measurement((), 2, 0.0, cells), section)
    assert cause(evidence, section, claim) == "sharp (layer 3), proposal (layer 7)"
    assert {"sharp", "proposal"} <= set(TELLS)


def test_a_table_of_layers_has_intervals_over_contexts() -> None:
    cells = [
        {"task": "needle", "length": 4096, "context": context, "layer": 3, "arm": "a",
         "scores": [], "entropy": None, "read": None, "error": 0.1 * context, "covered": 0.5}
        for context in (1, 2, 3)
    ]  # fmt: skip
    table = layer_table(SECTION, Measurement((), 3, 0.0, cells), 4096).splitlines()
    half = t_quantile(2) * 0.1 / 3**0.5
    assert table[0] == "| layer | method | covered %, 95% | error, 95% | contexts |"
    error = f"0.200 ({0.2 - half:.3f} to {0.2 + half:.3f})"
    assert table[2] == f"| 3 | `a` | 50.0 (50.0 to 50.0) | {error} | 3 |"


def speeds() -> tuple[Section, Measurement]:
    """Three contexts; the second arm reads twice as fast and decodes half as fast."""
    arms = (Arm(), Arm("hash", "2%"))
    section = replace(SECTION, kind="speed", claims=(), contexts=3, arms=arms)
    cells = [
        {"task": "needle", "length": 4096, "context": i, "layer": None, "arm": arm, "scores": [],
         "entropy": None, "read": None, "error": None, "covered": None,
         "prefill": 1000.0 * factor + i, "decode": 100.0 / factor}
        for i in (-1, 0, 1) for arm, factor in (("full", 1), ("hash 2%", 2))
    ]  # fmt: skip
    return section, Measurement((), 3, 0.0, cells)


def test_a_table_of_speed_is_beside_the_first_arm() -> None:
    section, found = speeds()
    table = speed_table(section, found, 4096).splitlines()
    half = t_quantile(2) / 3**0.5
    assert table[2:] == [
        f"| `full` | 1,000 ({1000 - half:,.0f} to {1000 + half:,.0f}) | 1.00 "
        "| 100 (100 to 100) | 1.00 | 3 |",
        f"| `hash 2%` | 2,000 ({2000 - half:,.0f} to {2000 + half:,.0f}) | 2.00 "
        "| 50 (50 to 50) | 0.50 | 3 |",
    ]


def test_the_least_budget_within_a_point_is_told() -> None:
    page = summary(RESULTS, {"beside-full": measured(0.5, 0.99, other=0.99)})
    rows = [[word.strip() for word in line.split("|")] for line in page.splitlines()[2:]]
    assert [row[3:6] for row in rows] == [
        ["`hash`", "4%", "4%"], ["`topk:index=flat`", "2%", "2.1%"],
    ]  # fmt: skip
    worse = summary(RESULTS, {"beside-full": measured(0.5, 0.99, other=0.6)})
    assert "| `hash` | none up to 4% |" in worse
    few = replace(measured(0.5, 0.99), contexts=19)
    assert len(summary(RESULTS, {"beside-full": few}).splitlines()) == 2


def test_a_claim_has_a_row_with_figure_bound_and_reason() -> None:
    evidence = of(measured(0.5, 0.99))
    page = list(tables(evidence))
    row = next(line for part in page for line in part.splitlines() if line.startswith("| as good"))
    words = [word.strip() for word in row.strip("|").split(" | ")]
    assert words[3:] == ["≥ -1", "1,000 / 20", "2%", "**refuted**", "method"]
    assert counts(evidence) == "In all: 1 refuted.\n" and not list(tables(evidence, False))


def test_claims_that_are_not_interpreted_stand_apart() -> None:
    evidence = of(measured(0.99, 0.99))
    assert not list(tables(evidence))
    row = "\n".join(tables(evidence, interpreted=False))
    assert "| as good" in row and "| **not interpreted: all near 100** |  |" in row


def test_auto_chooses_what_the_page_shows_to_suffice() -> None:
    """A smaller budget, which the heads of a group share, is within a point of full attention
    wherever it was measured."""
    arm, seen = "topk:budget=1%", 0
    auto, least = kvarn.Auto().budget, Budget.parse("1%")
    assert isinstance(auto, Budget) and auto.tokens(10_000) >= least.tokens(10_000)
    for section in read_plan().sections:
        found = read_measurement(section.data)
        if not section.name.startswith("beside-full") or found.contexts < section.contexts:
            continue
        lines = {line.arm: line for line in lines_of(section, found, section.lengths[-1])}
        assert is_as_full(lines[arm]), section.name
        seen += 1
    assert seen
