"""All of kvarn's output: `say` and others on stderr; `show…` and `generate` on stdout.

Nothing else in kvarn writes there, except tqdm, which gets only kvarn's own texts. Characters that
a stream's encoding lacks become backslash escapes, so no text fails or gets lost. Where both
streams lead to one place, each message begins a new line.

A failure on stdout is an error: a part of a result must not look like all of it. A failure on
stderr is ignored, as no message about it could be read.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TextIO

from .text import MESSAGE, lines, one_line, printable

_PIECES = 4096  # pieces of JSON that are written together


class _Output:
    """State of both streams.

    line_is_open  whether stdout's last line still lacks its newline
    listener      gets the messages instead of stderr
    """

    line_is_open = False
    listener: Callable[[str], None] | None = None


def set_listener(listener: Callable[[str], None]) -> None:
    """From now on call `listener` with each message instead of printing it on stderr."""
    _Output.listener = listener


def say(line: str, *more: str) -> None:
    """Print `kvarn: line` on stderr, and each line of `more` below it."""
    _tell("".join(f"{one_line(part, MESSAGE)}\n" for part in (f"kvarn: {line}", *more)))


def say_lines(text: str) -> None:
    """Print lines on stderr as they are, and a newline: usage, tracebacks."""
    _tell(f"{lines(text)}\n")


def prompt(text: str) -> None:
    """Print a question on stderr, without a newline: the user types the answer behind it."""
    _tell(one_line(text))


def show(text: str) -> None:
    """Print lines of a command's result, and a newline.

    Newlines and tabs are printed as they are, so text from outside needs `one_line` first.
    """
    _write(f"{lines(text)}\n")


def show_json(value: object) -> None:
    """Print a result for programs: JSON in ASCII, written in pieces as it may be long."""
    pieces = json.JSONEncoder(indent=2).iterencode(value)
    while some := list(islice(pieces, _PIECES)):
        _write("".join(some))
    _write("\n")


def show_path(path: str | os.PathLike[str]) -> None:
    """Print a path: escaped to a terminal, else byte for byte, for `$(…)` and xargs."""
    name = os.fspath(path)
    if sys.stdout.isatty() or not hasattr(sys.stdout, "buffer"):
        show(one_line(name))
        return
    with _failing_aloud():
        sys.stdout.flush()
        sys.stdout.buffer.write(os.fsencode(name) + b"\n")
        sys.stdout.buffer.flush()


def generate(piece: str) -> None:
    """Print generated text at once. A terminal gets only printable characters."""
    _write(printable(piece) if sys.stdout.isatty() else piece)


def silence(stream: TextIO | None) -> None:
    """Discard all later output to `stream`, so that it does not fail at exit."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, stream.fileno())  # type: ignore[union-attr]
        os.close(null)


def open_streams() -> None:
    """Open /dev/null for each standard stream that was closed when the process began.

    Otherwise the next open file would get the stream's number, and libraries would write to it. As
    in other programs, reading stdin and writing stdout then fail, and stderr is discarded.
    """
    for number, name, flags, mode in (
        (0, "stdin", os.O_WRONLY, "r"),
        (1, "stdout", os.O_RDONLY, "w"),
        (2, "stderr", os.O_WRONLY, "w"),
    ):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, flags)
            if null != number:
                os.dup2(null, number)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


@contextmanager
def capture_libraries() -> Iterator[None]:
    """Print warnings and log records of libraries by `say`."""
    handler, root = _LogHandler(logging.WARNING), logging.getLogger()
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, category, *_: say(f"{category.__name__}: {message}")
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)


class _LogHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(f"{record.name}: {record.getMessage()}")


def _tell(text: str) -> None:
    if _Output.listener is not None:
        _Output.listener(text.strip("\n"))
        return
    if sys.stderr is None:
        return
    if _Output.line_is_open and _is_one_place():
        _Output.line_is_open = False
        text = text if text.startswith("\n") else f"\n{text}"
    try:
        _put(sys.stderr, text)
    except OSError:
        silence(sys.stderr)


def _is_one_place() -> bool:
    """Whether stdout and stderr lead to one terminal, file or pipe."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):  # a stream without a descriptor
        return False


def _write(text: str) -> None:
    if text:
        _Output.line_is_open = not text.endswith("\n")
    with _failing_aloud():
        _put(sys.stdout, text)


@contextmanager
def _failing_aloud() -> Iterator[None]:
    """Name stdout in an error of writing to it, and write nothing more there."""
    try:
        yield
    except OSError as error:
        silence(sys.stdout)
        raise type(error)(error.errno, error.strerror, "standard output") from error


def _put(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()
