"""The front door: reads the command line, calls a command, turns errors into one line.

Exit codes: 0; 1 an error the user can act on; 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from . import __version__
from .commands import COMMANDS
from .commands.options.values import file_path, integer
from .system.errors import KvarnError
from .system.terminal import libraries_heard, open_streams, say, say_lines, show
from .system.text import MESSAGE, one_line


class Parser(argparse.ArgumentParser):
    """argparse's, with its messages through the same doors as everything else."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.color = False  # Python 3.14 paints help and errors; what is painted is escaped here
        self.register("type", Path, file_path)
        self.register("type", int, integer)

    def _get_values(self, action: argparse.Action, words: list[str]) -> Any:
        """An option's value; Python before 3.13 takes the one of `--option=--` away."""
        if not action.option_strings or words != ["--"]:
            return super()._get_values(action, words)
        value = self._get_value(action, "--")
        self._check_value(action, value)
        return value if action.nargs is None else [value]

    def error(self, message: str) -> NoReturn:
        super().error(one_line(message, MESSAGE))

    def _print_message(self, message: str, file: Any = None) -> None:
        """What `print_help`, `print_usage` and `exit` write with."""
        if message:
            door = say_lines if file is None or file is sys.stderr else show
            door(message.removesuffix("\n"))


def build_parser(*commands: str) -> argparse.ArgumentParser:
    """The parser of the whole program, with the options of `commands` alone, which are imported."""
    parser = Parser(
        prog="kvarn", description="A GGUF runtime for contexts that do not fit in memory."
    )
    parser.add_argument("--version", action="version", version=f"kvarn {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, help) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=help)
        if name in commands:
            _module(name).add(subparser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code; SystemExit where argparse ends it."""
    open_streams()
    words = sys.argv[1:] if arguments is None else arguments
    try:
        named = [word for word in words if word in COMMANDS][:1]
        options = build_parser(*named).parse_args(words)
        with libraries_heard():
            code: int = _module(options.command).run(options)
        return code
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # also panics of libraries in Rust, which are no Exception
        return _exit_code(error)


def _exit_code(error: BaseException) -> int:
    """Say what went wrong, in one line."""
    if isinstance(error, BrokenPipeError):
        return 0  # the reader has seen enough: `kvarn … | head`
    if os.environ.get("KVARN_DEBUG", "0") not in ("", "0"):
        import traceback

        say_lines("".join(traceback.format_exception(error)))
    if isinstance(error, KeyboardInterrupt):
        say_lines("")
        return 130
    say(" ".join(_message(error).split()))
    return 1


def _message(error: BaseException) -> str:
    if isinstance(error, KvarnError):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    if isinstance(error, MemoryError):
        return "out of memory: use a smaller model, --ctx or --kv-type"
    return (
        f"unexpected {type(error).__name__}: {str(error) or 'it says no more'} "
        "(a fault of kvarn: KVARN_DEBUG=1 shows where)"
    )


def _module(command: str) -> Any:
    return import_module(f".commands.{COMMANDS[command][0]}", __package__)
