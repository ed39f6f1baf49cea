"""`--draft` on the command line: the same text, figures in the statistics, errors in one line."""

import argparse
import io
import json
import sys
from pathlib import Path

import pytest

from kvarn.cli import main
from kvarn.commands import opening
from kvarn.commands.options.draft_options import add_draft_options
from kvarn.commands.options.drafting import draft_from
from kvarn.runtime.draft import DraftModel, Ngram
from kvarn.runtime.draft.request import DraftRequest
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.loading.load import load

from ...models.tiny_text_encoders import TinyEncoder, write

GREEDY = ["--temp", "0", "-n", "60"]


def parsed(line: str) -> DraftRequest | None:
    parser = argparse.ArgumentParser()
    add_draft_options(parser)
    return draft_from(parser.parse_args(line.split()))


def test_options_become_a_draft() -> None:
    assert parsed("") is None
    assert parsed("--draft ngram") == DraftRequest(Ngram())
    line = "--draft ngram --draft-max 7 --draft-min-match 3"
    assert parsed(line) == DraftRequest(Ngram(max_tokens=7, min_match=3))


def test_a_draft_that_is_opened_has_what_was_asked_for(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model's file may be named by a number."""
    monkeypatch.chdir(tmp_path)
    Path("16").symlink_to(tiny_path)
    requests = [parsed(f"--draft {words}") for words in ("ngram --draft-max 7", "16")]
    requests.append(parsed("--draft 16 --draft-max 5 --draft-p-min 0.25"))
    ngram, plain, model = (request.open(load) for request in requests if request is not None)
    assert ngram == Ngram(max_tokens=7)
    assert isinstance(plain, DraftModel) and isinstance(model, DraftModel)
    assert plain.model.file.path.name == "16"
    assert (plain.max_tokens, plain.min_probability) == (
        DraftModel.max_tokens,
        DraftModel.min_probability,
    )
    assert (model.max_tokens, model.min_probability) == (5, 0.25)


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


def test_a_model_drafts_for_another(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, small = tmp_path / "stats.json", tmp_path / "small.gguf"
    small.write_bytes(tiny_path.read_bytes())
    line = ["run", "-m", str(tiny_path), "-p", "one two", *GREEDY]
    assert main(line) == 0
    expected = capsys.readouterr().out
    drafting = ["--draft", str(small), "--draft-p-min", "0", "--draft-max", "5"]
    assert main([*line, *drafting, "--stats-json", str(figures)]) == 0
    assert capsys.readouterr().out == expected != ""
    found = json.loads(figures.read_text())
    assert found["draft_seconds"] > 0
    assert found["accepted_tokens"] <= found["drafted_tokens"]


def test_a_chat_with_a_model_that_drafts_answers_the_same(
    tiny_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    for drafting in ([], ["-md", str(tiny_path), "--draft-p-min", "0"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("la la la\nmore of it\n"))
        assert main(["chat", "-m", str(tiny_path), "-c", "400", *GREEDY, *drafting]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != ""


def test_files_that_cannot_draft_are_refused_before_a_model_is_loaded(
    tiny_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(opening, "load", refuse)
    encoder, text = tmp_path / "encoder.gguf", tmp_path / "a.txt"
    write(encoder, TinyEncoder())
    text.write_text("no model")
    for draft, words in (
        ("gone.gguf", "neither ngram nor a model: gone.gguf: no such file"),
        ("16", "--draft is 16, expected ngram or a model's file: use --draft-max N"),
        (str(text), "neither ngram nor a model: "),
        (str(encoder), "the draft encoder.gguf: the model is a text encoder (bert)"),
        (str(default_model_path()), "has another vocabulary than tiny.gguf: found "),
    ):
        code = 2 if draft == "16" else 1
        assert main(["run", "-m", str(tiny_path), "-p", "x", "--draft", draft]) == code
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
