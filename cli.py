"""Reads the command line, runs a command, turns errors into one line and an exit code.

Exit codes: 0; 1 an error the user can act on; 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .commands import COMMANDS, REAL_MODEL
from .commands.parsing.parser import build_parser, module_of
from .system.errors import WrongUsage, message_of, traceback_of
from .system.spelling import as_flag, use_spelling
from .system.terminal import capture_libraries, open_streams, say, say_lines, show

FIRST_STEPS = """\
kvarn runs language models from GGUF files, on the CPU, with long contexts.

    kvarn run -p "Once upon a time"         the small model that ships with kvarn continues a text
    kvarn chat -hf {real}
                                            talk with a real model, downloaded once (0.5 GB)
    kvarn run model.gguf -f book.txt        any GGUF file, any text
    kvarn ls                                models and packs on this machine
    kvarn --help                            all commands"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code; SystemExit where argparse ends it."""
    open_streams()
    with use_spelling(as_flag):
        return _main(sys.argv[1:] if arguments is None else arguments)


def _main(words: Sequence[str]) -> int:
    try:
        if not words:
            show(FIRST_STEPS.format(real=REAL_MODEL))
            return 0
        words = _as_options(words)
        named = [word for word in words if word in COMMANDS][:1]
        options = build_parser(*named, whole=False).parse_args(words)
        with capture_libraries():
            return _run(options)
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # also panics of libraries in Rust, which are no Exception
        return _exit_code(error)


def _as_options(words: Sequence[str]) -> Sequence[str]:
    """`kvarn help COMMAND` and `kvarn version` as kvarn's options."""
    if words[0] == "help":
        return [*words[1:], "--help"]
    return ["--version"] if words[0] == "version" else words


def _run(options: argparse.Namespace) -> int:
    """Run the command; its listener to compiled kernels ends with it."""
    try:
        code: int = module_of(options.command).run(options)
    finally:
        if (kernel_cache := sys.modules.get("kvarn.jit.kernel_cache")) is not None:
            kernel_cache.on_compile()
    return code


def _exit_code(error: BaseException) -> int:
    """Say what went wrong, in one line."""
    if isinstance(error, BrokenPipeError):
        return 0  # the reader has seen enough: `kvarn … | head`
    if where := traceback_of(error):
        say_lines(where)
    if isinstance(error, KeyboardInterrupt):
        say_lines("")
        if error.args:  # a line about what is kept
            say(str(error))
        return 130
    say(" ".join(message_of(error).split()))
    return 2 if isinstance(error, WrongUsage) else 1
