"""`kvarn completion`: a script by which a shell completes kvarn's command lines."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...system.errors import KvarnError
from ...system.terminal import show
from .. import COMMANDS
from ..options.values import file_name
from ..parsing.parser import build_parser

SHELLS = ("bash", "zsh", "tcsh")


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print a script that completes kvarn's command lines in your shell."
    parser.epilog = (
        'bash: eval "$(kvarn completion bash)" in ~/.bashrc. zsh: kvarn completion zsh > '
        "FOLDER/_kvarn, for a FOLDER in $fpath. tcsh: kvarn completion tcsh > FILE, and source it "
        "in ~/.tcshrc."
    )
    parser.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS), help="your shell")


def run(options: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise KvarnError("completion needs shtab: pip install shtab") from error
    parser = build_parser(*COMMANDS)
    _complete_paths(parser, shtab.FILE)
    show(shtab.complete(parser, options.shell))
    return 0


def _complete_paths(parser: argparse.ArgumentParser, files: object) -> None:
    """Let the shell offer files where an option takes a path."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _complete_paths(below, files)
        elif action.type in (Path, file_name) or action.dest == "model":
            action.complete = files  # type: ignore[attr-defined]
