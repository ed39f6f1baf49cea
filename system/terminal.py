"""The doors through which text leaves: `say` on stderr; `show`, `show_path`, `generate` on stdout.

Nothing else in kvarn writes there (but tqdm, which has texts of kvarn's own alone). What the
encoding of a stream lacks is written as a backslash escape: no text fails because of it, and none
is lost, whatever PYTHONIOENCODING and the locale say. Where both streams lead to one place, what
is said begins a line of its own.

A failure on stdout is an error, which names it: whoever reads a result must not take a part for
the whole. A failure on stderr ends nothing: there is nobody left to tell.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TextIO

from .text import MESSAGE, lines, one_line, printable

_PIECES = 4096  # of JSON that are written together


class _Line:
    """Whether the line that stdout is in has an end yet."""

    is_open = False


def say(line: str, *more: str) -> None:
    """Tell the user one thing on stderr; `more`: lines below it, without kvarn's name."""
    told = "".join(f"{one_line(part, MESSAGE)}\n" for part in (f"kvarn: {line}", *more))
    _tell(told)


def say_lines(text: str) -> None:
    """Lines of kvarn's own on stderr, and a newline after them: usage, tracebacks."""
    _tell(f"{lines(text)}\n")


def prompt(text: str) -> None:
    """Ask for a line on stderr, where the answer follows."""
    _tell(one_line(text))


def show(text: str) -> None:
    """Lines of a command's result, and a newline after them.

    Newlines and tabs are taken for kvarn's own: cells of a table are `one_line` before it is put
    together.
    """
    _write(f"{lines(text)}\n")


def show_json(value: object) -> None:
    """A result for programs: JSON in ASCII, written bit by bit, as it may be long."""
    pieces = json.JSONEncoder(indent=2).iterencode(value)
    while some := list(islice(pieces, _PIECES)):
        _write("".join(some))
    _write("\n")


def show_path(path: str | os.PathLike[str]) -> None:
    """A path: what `$(…)` and xargs take must be exact, what a terminal takes is escaped."""
    name = os.fspath(path)
    if sys.stdout.isatty() or not hasattr(sys.stdout, "buffer"):
        show(one_line(name))
        return
    with _failing_aloud():
        sys.stdout.flush()
        sys.stdout.buffer.write(os.fsencode(name) + b"\n")
        sys.stdout.buffer.flush()


def generate(piece: str) -> None:
    """Generated text, at once: to a terminal what prints; to a pipe or file all of it."""
    _write(printable(piece) if sys.stdout.isatty() else piece)


def silence(stream: TextIO | None) -> None:
    """Nobody reads `stream` any more: what it still holds must not fail when the process ends."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, stream.fileno())  # type: ignore[union-attr]
        os.close(null)


def open_streams() -> None:
    """Give each standard stream that was closed a descriptor that takes its number.

    Else the next file that is opened gets it, and what a library writes to stdout goes there. Text
    for stderr vanishes then; reading stdin and writing stdout fail, as they do for other programs.
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
def libraries_heard() -> Iterator[None]:
    """What libraries warn of and log becomes lines of `say`."""
    handler, root = _Said(logging.WARNING), logging.getLogger()
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, category, *_: say(f"{category.__name__}: {message}")
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)


class _Said(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(f"{record.name}: {record.getMessage()}")


def _tell(text: str) -> None:
    if sys.stderr is None:
        return
    if _Line.is_open and _is_one_place():
        _Line.is_open = False
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
        _Line.is_open = not text.endswith("\n")
    with _failing_aloud():
        _put(sys.stdout, text)


@contextmanager
def _failing_aloud() -> Iterator[None]:
    """An error that names stdout, which takes nothing more."""
    try:
        yield
    except OSError as error:
        silence(sys.stdout)
        raise type(error)(error.errno, error.strerror, "standard output") from error


def _put(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()
