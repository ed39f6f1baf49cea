"""Making a pack from an exported file."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from .....system.files import full_named, open_regular
from ....home import folder_mode, make_folder, remove_empty
from ....methods import Progress
from .. import files
from ..checking.verify import verify
from ..contents import LOCK, is_pack_file, remove_files, take_lock
from ..errors import PackError, checked_path
from .unpack import unpack

_IMPORTING = ".importing-"
_ASIDE = re.compile(rf"{re.escape(_IMPORTING)}[0-9a-f]{{16}}")


def import_pack(source: Path, path: Path, progress: Progress | None = None) -> None:
    """Make the pack `path` from an exported file; every byte is verified before it gets its name.

    Raises `PackError` if the file is not an exported pack or is damaged, or if `path` exists; then
    nothing is left. The pack is made in a folder beside `path`, `.importing-` and 16 hex digits.
    Raises OSError, which names `path` where the disk is full.
    """
    checked_path(path)
    if os.path.lexists(path):
        raise PackError(path, "it exists already: remove it first, or choose another name")
    fd = open_regular(Path(os.path.realpath(checked_path(source))))
    try:
        made = make_folder(path.parent)
        try:
            clear_imports(path.parent)
            with full_named(path):
                _import(fd, source, path, progress)
        except BaseException:
            remove_empty(made)
            raise
    finally:
        os.close(fd)


def _import(fd: int, source: Path, path: Path, progress: Progress | None) -> None:
    aside, lock = _make_aside(path)
    try:
        unpack(fd, aside, source, progress)
        if damage := verify(aside):
            raise PackError(source, f"it is damaged: {damage[0]}")
        aside.rename(path)
    except BaseException:
        remove_files(aside)
        raise
    finally:
        os.close(lock)
    files.sync_folder(path.parent)


def clear_imports(folder: Path) -> None:
    """Remove what killed imports have left in a folder of packs."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if _ASIDE.fullmatch(path.name):
            with suppress(OSError):  # still at work, just finished, or another user's
                _clear(path)


def _clear(path: Path) -> None:
    """Remove a folder that an import has left, if it is this user's and holds only files of a pack.
    OSError while another process has its lock."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_uid != os.getuid():
            return
        modes = {e.name: e.stat(follow_symlinks=False).st_mode for e in os.scandir(fd)}
        if not all(is_pack_file(name) and stat.S_ISREG(mode) for name, mode in modes.items()):
            return
    finally:
        os.close(fd)
    if not modes:  # killed before it had a lock
        path.rmdir()
        return
    lock = open_regular(path / LOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_files(path)
    finally:
        os.close(lock)


def _make_aside(path: Path) -> tuple[Path, int]:
    """A new folder beside `path`, and the descriptor of its lock, which this process holds."""
    while True:
        aside = path.with_name(_IMPORTING + secrets.token_hex(8))
        aside.mkdir(folder_mode(path))
        with suppress(
            PackError, FileNotFoundError
        ):  # another process cleared it before it had a lock
            lock = take_lock(aside)
            if os.fstat(lock).st_nlink:
                return aside, lock
            os.close(lock)
