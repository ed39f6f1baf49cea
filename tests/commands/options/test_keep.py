"""`--keep` and `--keep-budget`: long texts in a bounded cache, and refusals in words."""

import io
import json
import sys
from pathlib import Path

import pytest

from kvarn.cli import main
from kvarn.commands.options.model import keep_budget

LIMIT = "kvarn: stopped after 4 tokens, the limit of -n (-n -1: no limit)"
RUN = ["run", "--temp", "0", "-n", "4", "--ctx", "400"]


def run(capsys: pytest.CaptureFixture[str], model: Path, *arguments: str) -> tuple[int, str, str]:
    code = main([*RUN, "-m", str(model), "-p", "the mill by the river " * 8, *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("keep", ["streaming", "hashevict"])
def test_a_prompt_longer_than_the_budget_is_read(
    keep: str, tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stats = tmp_path / "stats.json"
    options = ["--keep", keep, "--keep-budget", "5%", "--stats-json", str(stats)]
    code, out, err = run(capsys, tiny_path, *options)
    assert code == 0
    assert all("compiling kernels" in line or line == LIMIT for line in err.splitlines())
    assert out
    figures = json.loads(stats.read_text())
    assert figures["prefilled_tokens"] > 100
    assert figures["n_ctx"] == 400


def test_a_budget_with_room_for_all_says_so(
    tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = run(capsys, tiny_path)
    roomy = run(capsys, tiny_path, "--keep", "hashevict", "--keep-budget", "400")
    assert roomy[:2] == plain[:2]
    assert roomy[2] == (
        f"kvarn: nothing is evicted: --keep-budget 400 has room for all 400 tokens\n{LIMIT}\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--keep-budget 50", "--keep-budget has no effect with --keep all"),
        ("--keep hashevict --keep-budget 14", "14 tokens leaves nothing to evict"),
        ("--keep streaming --keep-budget 1%", "1% of 400 tokens leaves nothing to evict"),
    ],
)
def test_impossible_combinations_are_one_line(
    options: str, message: str, tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, tiny_path, *options.split())
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert message in err


@pytest.mark.parametrize("options", ["--keep most", "--keep-budget 0", "--keep-budget 120%"])
def test_wrong_usage(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", *options.split()])
    assert stopped.value.code == 2
    assert "--keep" in capsys.readouterr().err


def test_budgets_stay_as_they_were_written() -> None:
    assert [keep_budget(text) for text in ("20%", "4096")] == ["20%", "4096"]


def test_a_chat_goes_on_beyond_its_budget(
    tiny_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns are appended; /undo, which would bring evicted tokens back, reads everything again."""
    turns = ["a mill by the river", "by the sea", "/stats", "/undo", "by the lake", "/stats"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(turns) + "\n"))
    options = ["--ctx", "2000", "--keep", "streaming", "--keep-budget", "30", "-n", "8"]
    assert main(["chat", "-m", str(tiny_path), "--temp", "0", *options]) == 0
    reads = [line for line in capsys.readouterr().err.splitlines() if "last turn" in line]
    assert [line.split()[3] == "0" for line in reads] == [False, True]
