"""`--draft` on the command line: the same text, figures in the statistics, errors in one line."""

import argparse
import io
import json
import sys
from pathlib import Path

import pytest

from kvarn.cli import main
from kvarn.commands.options.generation import add_draft_options, draft_from
from kvarn.runtime.draft import Draft, Ngram
from kvarn.system.errors import KvarnError

GREEDY = ["--temp", "0", "-n", "60"]


def parsed(line: str) -> Draft | None:
    parser = argparse.ArgumentParser()
    add_draft_options(parser)
    return draft_from(parser.parse_args(line.split()))


def test_options_become_a_draft() -> None:
    assert parsed("") is None
    assert parsed("--draft ngram") == Ngram()
    line = "--draft ngram --draft-max 7 --draft-min-match 3"
    assert parsed(line) == Ngram(max_tokens=7, min_match=3)


@pytest.mark.parametrize("option", ["--draft-max", "--draft-min-match"])
def test_an_option_that_says_nothing_is_refused(option: str) -> None:
    with pytest.raises(KvarnError, match=f"{option} 5 has no effect without --draft"):
        parsed(f"{option} 5")


@pytest.mark.parametrize("line", ["--draft magic", "--draft ngram --draft-max 0"])
def test_wrong_usage_is_exit_code_2(line: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", *line.split()])
    assert stopped.value.code == 2


def test_values_out_of_range_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-p", "x", "--draft", "ngram", "--draft-max", "256"]) == 1
    assert capsys.readouterr().err == "kvarn: drafting: max_tokens is 256, expected 1 to 255\n"


def test_run_writes_the_same_text_in_fewer_passes(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "stats.json"
    line = ["run", "-m", str(tiny_path), "-p", "one two " * 12, *GREEDY]
    assert main([*line, "--stats"]) == 0
    plain = capsys.readouterr()
    assert "drafted" not in plain.err
    drafting = ["--draft", "ngram", "--stats", "--stats-json", str(figures)]
    assert main([*line, *drafting]) == 0
    drafted = capsys.readouterr()
    assert drafted.out == plain.out != ""
    assert "drafted" in drafted.err
    found = json.loads(figures.read_text())
    assert 0 < found["accepted_tokens"] <= found["drafted_tokens"]
    assert found["decoded_tokens"] == 59


def test_chat_answers_the_same(
    tiny_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    for drafting in ([], ["--draft", "ngram"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("la la la la la la\nmore of it\n"))
        assert main(["chat", "-m", str(tiny_path), "-c", "400", *GREEDY, "--stats", *drafting]) == 0
        answers.append(capsys.readouterr())
    assert answers[0].out == answers[1].out != ""
    assert "drafted" in answers[1].err
