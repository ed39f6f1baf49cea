"""Options that say what an answer must match."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

from ...runtime.sampling import Constraint
from ...system.errors import KvarnError
from ...system.text import shown
from .files import text_in
from .values import utf8

_MOST_BYTES = 1 << 20
_LARK = re.compile(r"^\s*(%llguidance\b|start\s*:)", re.MULTILINE)
_OPTIONS = (
    ("-j --json-schema", "TEXT|@FILE", "a value of this JSON schema, as JSON"),
    ("--grammar", "FILE|TEXT", "a text of this grammar, in GBNF or Lark"),
    ("--regex", "TEXT", "a text that this regular expression matches as a whole"),
)


def add_constraint_options(group: Any) -> None:
    """Adds `--json-schema`, `--grammar` and `--regex`, of which one may be given."""
    one = group.add_mutually_exclusive_group()
    for flags, metavar, help in _OPTIONS:
        one.add_argument(*flags.split(), metavar=metavar, type=utf8, help=f"the answer is {help}")


def constraint_from(options: argparse.Namespace) -> Constraint | None:
    """The constraint that parsed options ask for; `SamplingError` for one that cannot be used."""
    if options.json_schema is not None:
        text = options.json_schema
        if text.startswith("@"):
            text = _contents(Path(text[1:]))
        elif os.path.isfile(text):  # noqa: PTH113 - which raises for a long text
            raise KvarnError(f"--json-schema {shown(text)} is a file: write @ before its name")
        return Constraint("json_schema", text)
    if options.regex is not None:
        return Constraint("regex", options.regex)
    if options.grammar is None:
        return None
    text = options.grammar
    if "::=" not in text and not _LARK.search(text):
        text = _contents(Path(text))
        if "::=" not in text and not _LARK.search(text):
            raise KvarnError(
                f"--grammar {shown(options.grammar)} holds no grammar: expected rules such as "
                "`root ::= …` (GBNF) or `start: …` (Lark)"
            )
    return Constraint("lark" if _LARK.search(text) else "gbnf", text)


def _contents(path: Path) -> str:
    return text_in(path, _MOST_BYTES).decode("utf-8")
