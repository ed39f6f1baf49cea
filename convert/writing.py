"""Writing a GGUF file that appears whole or not at all.

The bytes go to `OUT.part` beside the file, which takes its name when all are on disk: what a killed
process leaves behind is overwritten by the next one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..runtime.memory import human_bytes
from .errors import ConvertError

ALIGNMENT = 32
"""GGUF's own, of every tensor."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The name to write to; what is there when the block ends without an error becomes `path`.

    Raises `ConvertError` where another process is writing the same file.
    """
    if path.is_dir():
        raise ConvertError(f"{path} is a folder: expected the name of a file to write")
    if not path.parent.is_dir():
        raise ConvertError(f"{path.parent}: no such folder to write {path.name} to")
    part = path.with_name(path.name + ".part")
    with part.open("ab") as file:
        _lock(file, part, path)
        try:
            file.truncate(0)
            yield part
            os.fsync(file)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    _sync_folder(path.parent)


def _lock(file: BinaryIO, part: Path, path: Path) -> None:
    """One process writes a file at a time.

    Whoever waited to open `part` until it became `path` holds the finished file, not a new one.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours = part.exists() and os.path.samestat(part.stat(), os.fstat(file.fileno()))
    except OSError:
        ours = False
    if not ours:
        raise ConvertError(f"another process is writing {path}")


def check_room(folder: Path, n_bytes: int, what: str) -> None:
    """`ConvertError` where a disk has no room for `n_bytes`."""
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise ConvertError(
            f"{what} needs {human_bytes(n_bytes)} and {folder} has {human_bytes(free)} free"
        )


def pad(file: BinaryIO) -> None:
    """Zeros up to the next multiple of `ALIGNMENT`."""
    file.write(bytes(-file.tell() % ALIGNMENT))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
