"""`--help` lists what people use, `--help-all` every option."""

from __future__ import annotations

import argparse
import re
from functools import cache
from typing import Any

import pytest

from kvarn.cli import main
from kvarn.commands import COMMANDS
from kvarn.commands.parsing.parser import Parser, build_parser
from kvarn.commands.parsing.rare import RARE, is_rare
from kvarn.runtime.axes import ATTEND_AXIS, KEEP_AXIS, PREFILL_AXIS, Axis
from kvarn.system.spelling import as_flag

LONG = ("run", "chat", "serve", "bench", "perplexity", "eval", "pack build")
FEW = 35


@cache
def parser_of(command: str) -> Parser:
    parser = build_parser(*COMMANDS)
    for word in command.split():
        (below,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        parser = below.choices[word]
    return parser


def listed(command: str, flag: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The options that a help explains, by their first flags."""
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), flag])
    assert ended.value.code == 0
    return set(re.findall(r"^  (-{1,2}[\w-]+)", capsys.readouterr().out, re.MULTILINE))


def declared(command: str) -> dict[str, argparse.Action]:
    return {
        action.option_strings[0]: action
        for action in parser_of(command)._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    }


@pytest.mark.parametrize("command", LONG)
def test_help_lists_what_people_use_and_help_all_the_rest(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = declared(command)
    rare = {flag for flag, action in options.items() if is_rare(action)}
    usual, all_of_them = (listed(command, flag, capsys) for flag in ("--help", "--help-all"))
    assert all_of_them == options.keys()
    assert usual == options.keys() - rare
    assert rare and len(usual) <= FEW


def test_each_help_says_what_the_command_does() -> None:
    parsers = [build_parser(*COMMANDS)]
    for parser in parsers:
        assert parser.description, parser.prog
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
    assert len(parsers) > len(COMMANDS) + 5


@pytest.mark.parametrize(("command", "default"), [("run", "0.8"), ("ask", "0")])
def test_help_tells_the_temperature_that_a_command_takes(command: str, default: str) -> None:
    temp = declared(command)["--temp"]
    assert temp.help is not None and temp.help.endswith(f"(default {default})")
    assert temp.default in (None, float(default))


@pytest.mark.parametrize(("command", "method"), [("serve", "auto"), ("ask", "full")])
def test_help_tells_the_method_that_a_command_takes(command: str, method: str) -> None:
    help = str(declared(command)["--method"].help)
    assert re.findall(r"(\w+) \(default\)", help) == [method]


def test_help_says_where_the_rest_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    n_rare = sum(map(is_rare, declared("run").values()))
    assert f"`kvarn run --help-all` lists {n_rare} more" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["ls", "--help"])
    assert "--help-all" not in capsys.readouterr().out


@pytest.mark.parametrize("axis", [ATTEND_AXIS, KEEP_AXIS, PREFILL_AXIS], ids=lambda axis: axis.word)
def test_options_of_one_method_stand_under_its_name(
    axis: Axis[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help-all"])
    sections = re.split(r"\n\n(?=\S)", capsys.readouterr().out)
    under = {
        text.partition(":")[0]: set(re.findall(r"^  (--[\w-]+)", text, re.M)) for text in sections
    }
    alone: dict[str, set[str]] = {}
    for word, fields in axis.options().items():
        if len(fields) == 1:
            alone.setdefault(f"--{axis.word} {next(iter(fields))}", set()).add(as_flag(word))
    assert alone and alone == {name: flags for name, flags in under.items() if name in alone}


def test_rare_options_exist() -> None:
    flags = {flag for command in LONG for flag in parser_of(command)._option_string_actions}
    assert flags >= RARE
