"""How fast contexts that evict read and decode."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kvarn.evals.quality import Arm, Plan
from kvarn.evals.quality.folder import ContextFolder
from kvarn.evals.quality.reading import TokenSample, tokenize_sample
from kvarn.evals.tasks import Plain
from kvarn.runtime.model import Model
from lab.results import speed
from lab.results.plan import SPEED_ROUNDS
from lab.results.speed import DECODED, Speed, rates
from lab.results.study import keeping_arm

PLAN = Plan(("needle",), (900,), (Arm(),), Plain(), "plain", 2, 1)


@pytest.mark.parametrize("keep", ["", "hashevict", "h2o"])
def test_a_rate_is_tokens_over_seconds(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str
) -> None:
    """The first decoded token is of the prompt's time, and of neither number; the arm's method
    decides what stays."""
    read = tokenize_sample(tiny, ContextFolder(tmp_path / "one"), PLAN, PLAN.cells()[0], 0)
    clock = iter((10.0, 12.0, 16.0))
    monkeypatch.setattr(speed, "perf_counter", lambda: next(clock))
    arm = keeping_arm(keep, "50%") if keep else Arm()
    opened, context = [], Model.context

    def noted(*args: Any) -> Any:
        opened.append(args[3])
        return context(*args)

    monkeypatch.setattr(Model, "context", noted)
    assert rates(tiny, read, arm) == (len(read.ids) / 2, (DECODED - 1) / 4)
    assert opened == [arm.keeping]


def test_arms_are_taken_in_turn_and_the_median_is_kept(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th measurement of all has the rate n; each round begins one arm later."""
    taken, numbers = [], count(1)

    def one(_model: Model, _read: TokenSample, arm: Arm) -> tuple[float, float]:
        taken.append(str(arm))
        n = next(numbers)
        return float(n), float(-n)

    monkeypatch.setattr(speed, "rates", one)
    cells = list(Speed(tiny, PLAN, tmp_path, ("h2o", "l2norm"), ("30%", "50%")).cells())
    arms = ["full"] + [
        f"full keep {keep} {b}" for b in ("30%", "50%") for keep in ("h2o", "l2norm")
    ]
    assert [cell["arm"] for cell in cells] == [*arms, *arms]
    assert taken[: 2 * len(arms)] == [*arms, *arms[1:], arms[0]] and SPEED_ROUNDS == 3
    # The first arm is the 1st, the 10th (the last of the second round), the 14th.
    assert (cells[0]["prefill"], cells[0]["decode"]) == ([10.0], [-10.0])
    assert (cells[1]["prefill"], cells[1]["decode"]) == ([6.0], [-6.0])


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ("nonsense", "unknown keep method 'nonsense', expected one of all"),
        ("nacl:dice=two", "nacl:dice=two: unknown option 'dice', expected one of "),
        ("h2o", "budget is '0%'"),
    ],
)
def test_wrong_options_end_with_one_line(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str, said: str
) -> None:
    text, answers = tmp_path / "text.txt", tmp_path / "answers.jsonl"
    text.write_text("It was a bright cold morning, and the clocks struck. " * 200)
    words = ["speed", "--model", str(tiny.file.path), "--task", "needle", "--length", "900"]
    words += ["--contexts", "1", "--questions", "1", "--text", str(text), "--work", str(tmp_path)]
    words += ["--answers", str(answers), "--keep", keep, "--keep-budget", "0%"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit, match=r"^kvarn: ") as raised:
        speed.main()
    assert said in str(raised.value) and "\n" not in str(raised.value)
    assert not answers.exists()


def test_processes_do_not_share_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(speed, "study", lambda o, _make: asked.append(o.processes))
    words = "speed --model m --task needle --length 9 --text t --answers a --keep h2o"
    monkeypatch.setattr("sys.argv", [*words.split(), "--processes", "2"])
    speed.main()
    assert asked == [1]


def test_figures_are_kept(tiny: Model, tmp_path: Path) -> None:
    one = Speed(tiny, PLAN, tmp_path, ("streaming",), ("50%",))
    cells = list(one.cells())
    assert all(cell["prefill"][0] > 0 and cell["decode"][0] > 0 for cell in cells)
    assert list(one.cells()) == cells
