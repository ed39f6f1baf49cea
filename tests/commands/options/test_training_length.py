"""A size beyond the length that a model was trained on is named by each command that takes one."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvarn.cli import main

TEXT = "The mill stood by the river, and the miller slept. " * 8
LINES = [
    "run -p mill -n 2 --ctx 200",
    "run -p mill -n 2 --ctx 200 --keep streaming --keep-budget 20",
    "pack build -f {text} -o {out}/pack --ctx 500",
    "pack build -f {text} -o {out}/packs --ctx 500 --each",
    "perplexity -f {text} --ctx 100",
    "perplexity -f {text} --ctx 100 --decode 4",
    "eval --task needle --length 400 --contexts 1 --questions 1 --work {out}",
]


@pytest.mark.parametrize("line", LINES)
def test_it_is_said_once(
    line: str, trained_on_64: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text(TEXT)
    words = line.format(text=tmp_path / "t.txt", out=tmp_path).split()
    at = 2 if words[0] == "pack" else 1
    assert main([*words[:at], "-m", str(trained_on_64), *words[at:]]) == 0
    option = "--length" if words[0] == "eval" else "--ctx"
    size = words[words.index(option) + 1]
    said = [line for line in capsys.readouterr().err.splitlines() if "trained on" in line]
    assert len(said) == 1
    assert said[0].startswith(f"kvarn: {option} {size} is more than the 64 tokens ")


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("perplexity -f {text} --ctx 100M", "at least 209,715,200: "),
        ("perplexity -f {text} --ctx 100M --decode 4", "--ctx 104,857,600 with --decode 4 "),
        ("eval --task needle --length 100M --contexts 1 --questions 1 --work {out}", "104,"),
    ],
)
def test_a_refused_length_is_only_refused(
    line: str,
    needed: str,
    trained_on_64: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    (tmp_path / "t.txt").write_text(TEXT)
    words = line.format(text=tmp_path / "t.txt", out=tmp_path).split()
    assert main([words[0], "-m", str(trained_on_64), *words[1:]]) == 1
    said = capsys.readouterr().err
    assert "trained on" not in said and needed in said
