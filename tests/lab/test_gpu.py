"""The report of a GPU: steps that pass, fail, hang or lack their program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lab.gpu import report as gpu_report
from lab.gpu.report import Step, run, steps


def _python(name: str, code: str, minutes: float = 1.0) -> Step:
    return Step(name, (sys.executable, "-c", code), minutes)


def test_all_steps_are_in_one_file_whatever_becomes_of_them(tmp_path: Path) -> None:
    report = tmp_path / "new" / "report.md"
    chosen = [
        _python("good", "print('fine')"),
        _python("bad", "import sys; print('out'); sys.exit('err')"),
        _python("slow", "import time; print('begun', flush=True); time.sleep(60)", 0.02),
        Step("missing", ("no-such-program",)),
        _python("last", "print('\\n'.join(map(str, range(1000))))"),
    ]
    assert not run(chosen, report)
    text = report.read_text()
    assert "- numpy " in text
    for part in (
        "## good: passed",
        "    fine\n",
        "## bad: failed with exit code 1",
        "    out\n    err\n",
        "## slow: stopped after 0.02 minutes",
        "    begun\n",
        "## missing: not run: no-such-program is not installed",
        "## last: passed",
        "    999\n",
    ):
        assert part in text
    assert "    799\n" not in text


def test_what_is_not_installed_is_no_failure(tmp_path: Path) -> None:
    assert run([_python("good", ""), Step("missing", ("no-such-program",))], tmp_path / "r.md")


def test_steps_name_what_there_is() -> None:
    root = Path(gpu_report.__file__).parents[2]
    for step in steps(gpu_report.MODEL):
        for word in step.command:
            if word.startswith(("tests/", "runtime/")):
                assert (root / word).exists(), word


def test_unknown_steps_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_report", "nothing"])
    with pytest.raises(SystemExit):
        gpu_report.main()
    assert "no step is called nothing" in capsys.readouterr().err
