"""The plan in the repository, the commands it makes, and what stands beside them."""

import argparse
import re
import shlex
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from kvarn.commands.options.arms import arms_from
from kvarn.commands.parsing.parser import build_parser
from lab.results import run as running
from lab.results.__main__ import estimate, main
from lab.results.data import (
    Measurement,
    cells_of,
    read_measurement,
    write_measurement,
)
from lab.results.page.derived import correlation, needed_k
from lab.results.page.plots import Point, Series, draw
from lab.results.page.report import PAGE, PAPERS, TABLES, report
from lab.results.page.verdicts import is_full
from lab.results.plan import (
    ANSWERS,
    Arm,
    Model,
    Rates,
    Results,
    Section,
    arms_of,
    read_plan,
)

RESULTS = read_plan()
ANSWERED = [section for section in RESULTS.sections if section.kind == ANSWERS]


def parsed(section: Section) -> argparse.Namespace:
    words = RESULTS.command(section)
    return build_parser("eval").parse_args(words[words.index("eval") :])


@pytest.mark.parametrize("section", ANSWERED, ids=lambda section: section.name)
def test_a_command_evaluates_the_arms_of_its_section(section: Section) -> None:
    arms = [str(arm) for arm in arms_from(parsed(section))]
    assert arms == [str(arm) for arm in section.arms]
    assert is_full(arms[0])
    assert section.paper in PAPERS
    options = parsed(section)
    assert tuple(options.task) == section.tasks and tuple(options.length) == section.lengths


def test_the_whole_plan_fits_in_twelve_hours() -> None:
    words = estimate(RESULTS).splitlines()[-1].split()
    assert words[:2] == ["in", "all:"] and words[3] == "h"
    assert float(words[2]) <= 12


def test_the_estimate_is_the_sum_of_what_is_read_and_asked() -> None:
    """One task, one length of 1,000 tokens, two contexts with ten questions, two processes."""
    rates = Rates(1.0, 0.01, 2.0, 0.001, 0.5, 7.0)
    arms = (Arm(), Arm("topk", "1%"), Arm("full", "", "nacl", "20%"))
    section = Section("s", "topk", "s", "", "m", ("needle",), (1000,), 2, 10, arms)
    results = Results({"m": Model("m.gguf", rates)}, (), (section,))
    reading, step = 1000 * (1 + 0.01 * 500), 2 + 0.001 * 1000
    pack = reading + 2 * (1000 * 0.5 + 10 * 12 * step)
    assert results.seconds(section) == pytest.approx(pack + reading + 10 * 12 * step)
    inside = replace(section, asked="inside")
    more = results.seconds(inside) - results.seconds(section)
    assert more == pytest.approx(10 * 512 * (1 + 0.01 * 1000))
    sparse = replace(section, arms=tuple(replace(arm, prefill="sparse") for arm in arms))
    saved = results.seconds(section) - results.seconds(sparse)
    assert saved == pytest.approx(2 * 1000 * 0.01 * 500 * 7 / 8)
    study = replace(section, kind="layers")
    assert results.seconds(study) == pytest.approx(reading + 7)
    speed = replace(section, kind="speed")
    assert results.seconds(speed) == pytest.approx(reading * (1 + 3 * 3))


def test_the_targets_have_enough_questions() -> None:
    for name in ("beside-full", "evicting-beside-full"):
        section = next(one for one in RESULTS.sections if one.name == name)
        assert section.contexts >= 20 and section.contexts * section.questions >= 2000
        measured = read_measurement(section.data)
        if measured.contexts >= section.contexts:
            for task in section.tasks:
                full = measured.clusters(task, section.lengths[0], "full", "score")
                assert sum(map(len, full.values())) >= 2000, task


def test_the_page_is_what_the_data_give() -> None:
    for path, content in report(RESULTS).items():
        assert path.read_text(encoding="utf-8") == content, (
            f"{path} is not of the data: python -m lab.results report"
        )


def test_the_page_of_verdicts_can_be_read_at_once() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= 300


def test_every_table_has_its_command() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (PAGE, TABLES))
    for section in RESULTS.sections:
        measured = read_measurement(section.data)
        if measured.cells:
            assert shlex.join(measured.command) in text
            assert measured.command == RESULTS.command(section, measured.contexts)
        else:
            assert shlex.join(RESULTS.command(section)) in text


def test_first_looks_come_first_then_section_after_section() -> None:
    taken = [(step.section.name, step.contexts) for step in running.steps(RESULTS)]
    timely = [section for section in RESULTS.sections if not section.late]
    assert taken[: len(timely)] == [(section.name, 2) for section in timely]
    rest = [(section.name, section.contexts) for section in timely]
    assert taken[len(timely) :][: len(rest)] == rest
    late = {section.name for section in RESULTS.sections if section.late}
    assert {name for name, _ in taken[2 * len(timely) :]} == late
    assert taken[0][0] == "beside-full" and taken[1][0] == "evicting-beside-full"


def test_a_step_is_done_once_its_command_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = ANSWERED[0]
    monkeypatch.setattr(Section, "data", property(lambda self: tmp_path / f"{self.name}.json"))
    step = running.Step(section, 2)
    assert not running.is_done(RESULTS, step)
    write_measurement(section.data, Measurement(RESULTS.command(section, 5), 5, 1.0, []))
    assert running.is_done(RESULTS, step) and running.is_done(RESULTS, replace(step, contexts=5))
    assert not running.is_done(RESULTS, replace(step, contexts=10))
    write_measurement(section.data, Measurement(["-m", "other"], 5, 1.0, []))
    assert not running.is_done(RESULTS, step)


def test_a_section_that_the_plan_has_not_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in RESULTS.texts:
        (tmp_path / name).touch()
    monkeypatch.setattr("sys.argv", ["results", "run", str(tmp_path), "--only", "layers,nosuch"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "the plan has no section nosuch: see `plan` for all" in capsys.readouterr().err


def test_a_run_out_of_time_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is a program of its own, which is interrupted and started again."""
    script = tmp_path / "command.py"
    script.write_text(
        "import json, pathlib, sys, time\n"
        f"seen = pathlib.Path({str(tmp_path / 'seen')!r})\n"
        "if not seen.exists():\n"
        "    seen.write_text('begun')\n"
        "    time.sleep(60)\n"
        "target = sys.argv[sys.argv.index('--answers') + 1]\n"
        "cell = dict(task='needle', length=64, context=0, arm='full', scores=[1.0],\n"
        "            covered=[None], error=[None], read=[None], entropy=[None])\n"
        "pathlib.Path(target).write_text(json.dumps(cell) + chr(10))\n"
    )
    section = replace(ANSWERED[0], contexts=1, name="only")
    results = Results(RESULTS.models, RESULTS.texts, (section,))
    monkeypatch.setattr(Section, "data", property(lambda self: tmp_path / f"{self.name}.json"))
    monkeypatch.setattr(Results, "command", lambda self, section, n=0: [str(script)])
    clock = running.time.time
    said: list[str] = []
    work = tmp_path / "work"
    setting = running.Setting(tmp_path, work, clock() + 3, 2)
    assert not running.run(results, setting, said.append)
    assert (tmp_path / "seen").exists() and not section.data.exists()
    setting = replace(setting, until=clock() + 60)
    assert running.run(results, setting, said.append)
    assert read_measurement(section.data).cells[0]["scores"] == [1.0]
    assert running.run(results, setting, said.append) and len(said) == 2


def test_what_was_measured_is_kept_as_it_was(tmp_path: Path) -> None:
    line = (
        '{"task": "needle", "length": 64, "context": 0, "arm": "full", "scores": [1.0, 0.0], '
        '"covered": [0.5, null], "error": [null, null], "read": [0.1, 0.2], "entropy": [null, 1.0]}'
    )
    cells = cells_of([line])
    assert cells[0]["covered"] == 0.5 and cells[0]["error"] is None and cells[0]["read"] == 0.15
    measured = Measurement(["a", "b c"], 1, 12.0, cells)
    write_measurement(tmp_path / "data" / "x.json", measured)
    assert read_measurement(tmp_path / "data" / "x.json") == measured


def test_methods_that_name_their_budget_take_no_other() -> None:
    entry = {"method": ["full", "topk", "hash:budget=5%"], "budget": ["1%", "2%"]}
    assert list(map(str, arms_of(entry))) == ["full", "topk 1%", "topk 2%", "hash:budget=5%"]
    kept = {"method": ["full"], "keep": ["all", "nacl"], "keep_budget": ["10%"]}
    assert list(map(str, arms_of(kept))) == ["full", "full keep nacl 10%"]
    sparse = {"method": ["full", "topk"], "budget": ["1%"], "prefill": ["exact", "sparse"]}
    expected = ["full", "topk 1%", "full prefill sparse", "topk 1% prefill sparse"]
    assert list(map(str, arms_of(sparse))) == expected


def test_the_k_that_a_task_needs() -> None:
    arms = (Arm(), Arm("topk", "8"), Arm("topk", "64"), Arm("topk", "512"))
    section = Section("k", "topk", "k", "", "mini", ("a",), (1000,), 2, 2, arms)
    scores = {"full": 1.0, "topk 8": 1.0, "topk 64": 0.5, "topk 512": 1.0}
    cells = [
        {"task": "a", "length": 1000, "context": c, "arm": arm, "scores": [score, score],
         "entropy": 2.0, "read": None, "error": None, "covered": None}
        for arm, score in scores.items() for c in (0, 1)
    ]  # fmt: skip
    assert needed_k(section, Measurement((), 2, 0, cells), 1000) == [("a", 512, 2.0)]
    read_sparsely = replace(section, arms=tuple(replace(arm, prefill="sparse") for arm in arms))
    cells = [{**cell, "arm": f"{cell['arm']} prefill sparse"} for cell in cells]
    assert needed_k(read_sparsely, Measurement((), 2, 0, cells), 1000) == [("a", 512, 2.0)]


def test_pearsons_correlation() -> None:
    assert correlation([(1, 2), (2, 4), (3, 6)]) == pytest.approx(1)
    assert correlation([(1, 1), (2, 3), (3, 2)]) == pytest.approx(0.5)
    assert correlation([(1, 1), (2, 2)]) is None
    assert correlation([(1, 1), (1, 2), (1, 3)]) is None


def test_a_plot_is_xml_with_a_mark_for_each_point() -> None:
    points = [Point(0.01, 0.9, (0.8, 0.95)), Point(0.1, 1.0)]
    picture = draw("a < b", "tokens read", [Series("topk & co", points)], level=0.97)
    root = ET.fromstring(picture)
    marks = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(marks) == 2
    assert float(marks[0].get("cx") or 0) < float(marks[1].get("cx") or 0)
    assert float(marks[0].get("cy") or 0) > float(marks[1].get("cy") or 0)
    assert re.search("topk &amp; co", picture) and "a &lt; b" in picture


def test_a_plan_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["plan"], ["report"], ["run", str(tmp_path)]):
        monkeypatch.setattr("sys.argv", ["results", "--plan", str(tmp_path / "plan.json"), *words])
        assert main() == 1
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1
        assert f"there is no plan {tmp_path / 'plan.json'}: name another" in captured.err
