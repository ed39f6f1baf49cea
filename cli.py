"""The front door: reads the command line, calls a command, turns errors into one line.

Exit codes: 0; 1 an error the user can act on; 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from .system.errors import KvarnError

COMMANDS = (
    "hf-pull",
    "convert",
    "quantize",
    "imatrix",
    "learn",
    "run",
    "chat",
    "inspect",
    "tokenize",
    "pack",
    "bench",
    "perplexity",
    "eval",
    "doctor",
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; building it imports no command's machinery."""
    from . import __version__

    parser = argparse.ArgumentParser(
        prog="kvarn", description="A GGUF runtime for contexts that do not fit in memory."
    )
    parser.add_argument("--version", action="version", version=f"kvarn {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        _module(name).add(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code."""
    options = build_parser().parse_args(arguments)
    command = _module(options.command)
    try:
        code: int = command.run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has seen enough (`kvarn … | head`); keep the interpreter's own flush silent.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KvarnError as error:
        return _fail(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}")
    except MemoryError:
        return _fail("out of memory: use a smaller model, --ctx or --kv-type")


def _module(command: str) -> Any:
    return import_module(f".commands.{command.replace('-', '_')}", __package__)


def _fail(message: str) -> int:
    print(f"kvarn: {' '.join(message.split())}", file=sys.stderr)
    return 1
