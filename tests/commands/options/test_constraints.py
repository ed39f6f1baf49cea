"""`--json-schema`, `--grammar`, `--regex`: what they make, and what they refuse."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from kvarn.cli import main
from kvarn.commands.options.generation import add_sampling_options, sampling_from
from kvarn.runtime.sampling import Constraint
from kvarn.system.errors import KvarnError

SCHEMA = '{"type": "integer"}'
GBNF = 'root ::= "a" | "b"'
LARK = 'start: "a" | "b"'


def made(*arguments: str) -> Constraint | None:
    parser = argparse.ArgumentParser()
    add_sampling_options(parser)
    return sampling_from(parser.parse_args(arguments)).get("constraint")


def test_texts_and_files_say_the_same(tmp_path: Path) -> None:
    schema, gbnf, lark = (tmp_path / name for name in ("s.json", "g.gbnf", "g.lark"))
    schema.write_text(SCHEMA)
    gbnf.write_text(GBNF)
    lark.write_text(LARK)
    for flag in ("-j", "--json-schema"):
        for text in (SCHEMA, f"@{schema}"):
            assert made(flag, text) == Constraint("json_schema", SCHEMA)
    assert made("--grammar", GBNF) == made("--grammar", str(gbnf)) == Constraint("gbnf", GBNF)
    assert made("--grammar", LARK) == made("--grammar", str(lark)) == Constraint("lark", LARK)
    assert made("--regex", "a+") == Constraint("regex", "a+")
    assert made() is None


def test_one_form_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        made("--regex", "a", "--grammar", GBNF)
    assert "not allowed with" in capsys.readouterr().err


def test_what_is_no_form_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "g.txt"
    file.write_text("hello")
    for arguments, words in {
        ("--grammar", str(tmp_path / "none.gbnf")): "none.gbnf",
        ("--grammar", str(file)): "holds no grammar",
        ("--json-schema", f"@{tmp_path}/none.json"): "none.json",
        ("--json-schema", '{"not": {}}'): "not",
        ("--json-schema", "{"): "JSON",
        ("--regex", "("): "unclosed group",
    }.items():
        with pytest.raises((KvarnError, OSError)) as caught:
            made(*arguments)
        assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_run_writes_what_matches(capsys: pytest.CaptureFixture[str]) -> None:
    age = '"age": {"type": "integer", "minimum": 0, "maximum": 999}'
    properties = f'"properties": {{{age}}}, "required": ["age"]'
    schema = f'{{"type": "object", {properties}, "additionalProperties": false}}'
    assert main(["run", "-p", "The captain:", "-n", "200", "--json-schema", schema]) == 0
    assert type(json.loads(capsys.readouterr().out)["age"]) is int
