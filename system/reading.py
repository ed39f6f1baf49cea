"""Reads files and texts that the user names, up to a limit.

A path may lead to a device that never ends (`/dev/zero`) or to a pipe without a writer. So a file
has to be a regular one. A text may also come through a pipe or from a terminal:

    kvarn run -f <(pdftotext book.pdf -)        kvarn run -f - < book.txt
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import KvarnError, WrongUsage
from .files import kind_of

MOST_TEXT = 256 << 20
"""Bytes of a text: 64 for each of four million tokens, where 4 are usual."""
STDIN = Path("-")
_PART = 1 << 20


class InputRefused(KvarnError):
    """An input is of the wrong kind, empty or too long."""


def read_file(path: Path, limit: int) -> bytes:
    """All bytes of a regular file. Follows links.

    Raises `InputRefused` for other files and for more than `limit` bytes; OSError.
    """
    return _read_path(path, limit, is_text=False)


def read_text(path: Path, limit: int = MOST_TEXT) -> bytes:
    """All bytes of a text: a regular file, a pipe, a terminal, or standard input (`-`).

    Raises `InputRefused` for devices and folders, for a pipe without data, and after more than
    `limit` bytes; OSError.
    """
    return read_stdin(limit) if path == STDIN else _read_path(path, limit, is_text=True)


def check_stdin_once(paths: Iterable[Path]) -> None:
    """Raises `WrongUsage` where standard input is named twice: its end is read once."""
    if sum(path == STDIN for path in paths) > 1:
        raise WrongUsage("standard input (-) is named more than once: it can be read only once")


def read_stdin(limit: int = MOST_TEXT) -> bytes:
    """All bytes of standard input. Raises `InputRefused` if it is closed or has over `limit`."""
    if sys.stdin is None:
        raise InputRefused("standard input is closed: expected a text there")
    data = bytearray()
    stream: BinaryIO = sys.stdin.buffer
    with stdin_named():
        while part := stream.read(min(_PART, limit + 1 - len(data))):
            data += part
            if len(data) > limit:
                raise _too_long("standard input", limit)
    return bytes(data)


@contextmanager
def stdin_named() -> Iterator[None]:
    """Name standard input in an error of reading it, as where it is closed."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, error.strerror, "standard input") from error


def read_start(path: Path, n_bytes: int) -> bytes:
    """The first bytes of a regular file. Raises `InputRefused` for any other; OSError."""
    fd, _ = _open(path, is_text=False)
    try:
        return os.read(fd, n_bytes)
    finally:
        os.close(fd)


def _read_path(path: Path, limit: int, is_text: bool) -> bytes:
    fd, status = _open(path, is_text)
    try:
        if stat.S_ISREG(status.st_mode) and status.st_size > limit:
            raise _too_long(str(path), limit)
        data = _read(fd, limit)
    finally:
        os.close(fd)
    if len(data) > limit:
        raise _too_long(str(path), limit)
    if stat.S_ISFIFO(status.st_mode) and not data:
        raise InputRefused(f"nothing came through the pipe {path}: does a program write to it?")
    return data


def _open(path: Path, is_text: bool) -> tuple[int, os.stat_result]:
    # Without O_NONBLOCK, opening a pipe that nobody writes to waits for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    status = os.fstat(fd)
    mode = status.st_mode
    if stat.S_ISREG(mode) or (is_text and (stat.S_ISFIFO(mode) or os.isatty(fd))):
        return fd, status
    os.close(fd)
    expected = "a text file or a pipe" if is_text else "a regular file"
    raise InputRefused(f"{path} is {kind_of(mode)}: expected {expected}")


def _read(fd: int, limit: int) -> bytes:
    """Up to `limit` + 1 bytes."""
    data = bytearray()
    while len(data) <= limit:
        try:
            part = os.read(fd, min(_PART, limit + 1 - len(data)))
        except BlockingIOError:  # the pipe is empty, and a program has it open to write
            select.select([fd], [], [])
            continue
        if not part:
            break
        data += part
    return bytes(data)


def _too_long(name: str, limit: int) -> InputRefused:
    return InputRefused(
        f"{name} has more than the {limit:,} bytes that are read at once: give a shorter one, or "
        "cut it into parts"
    )
