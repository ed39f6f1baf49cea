"""Files written and removed so that nothing of anybody else is touched.

The rule of the whole project:

- What is written goes to a new file with a random name beside the target, opened exclusively, and
  takes the target's name when all of it is on disk: a reader sees the old file or the new one.
- A target is a regular file or does not exist. Links, folders, pipes and devices are refused.
- What is removed is a regular file (or a link itself, never what it points to) with a name that
  kvarn gives; a folder is removed when it is empty.

    OUT.gguf                            the target
    .OUT.gguf.<16 hex digits>.part      what a process is writing, locked (flock) while it does

A process that was killed leaves its `.part`; the next one that writes the same target removes it,
once nobody holds its lock.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import KvarnError

PRIVATE = 0o600
"""Mode of files that are the user's alone."""
SHARED = 0o666
"""Mode of files that the user names: less the umask."""


class FileRefused(KvarnError):
    """A path is not what kvarn writes to or removes."""


@contextmanager
def new_file(target: Path, mode: int = SHARED) -> Iterator[Path]:
    """A fresh, empty file to write to; when the block ends without an error it becomes `target`.

    The file is synced before it takes the name, and the folder after. On an error it is removed,
    and `target` is as it was. mode: permissions, less the umask.

    Raises `FileRefused` where `target` is no regular file, where its folder does not exist, and
    where another process is writing it; OSError where the system refuses.
    """
    check_target(target)
    _clear_abandoned(target)
    part, fd = _create_part(target, mode)
    try:
        yield part
        if not os.path.samestat(os.fstat(fd), part.lstat()):
            raise FileRefused(f"{part} was replaced by another file while it was written")
        os.fsync(fd)
        check_target(target)
        part.replace(target)
    except BaseException:
        _remove_if_same(part, fd)
        raise
    finally:
        os.close(fd)
    sync_folder(target.parent)


def write_file(target: Path, data: bytes | memoryview, mode: int = SHARED) -> None:
    """`target` holds `data`: after a crash the old content or the new, never a part of either.

    Raises what `new_file` raises.
    """
    with new_file(target, mode) as part, part.open("r+b") as file:
        file.write(data)


def check_target(target: Path) -> None:
    """`FileRefused` unless a file can be written under this name: it is a regular file, or absent.

    Links are refused, too: whoever means what they point to names that.
    """
    if not target.name or target.name == "..":
        raise FileRefused(f"{str(target)!r} is no name of a file to write")
    try:
        found = target.lstat().st_mode
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise FileRefused(
                f"{target.parent}: no such folder to write {target.name} to"
            ) from None
        return
    if not stat.S_ISREG(found):
        raise FileRefused(
            f"{target} is {kind_of(found)}: expected the name of a regular file, or a new one"
        )


def open_regular(path: Path, writable: bool = False, mode: int = SHARED) -> int:
    """A descriptor of a regular file, which is made where it is missing and may be written.

    The last component is not followed where it is a link. Raises `OSError`, also for a pipe or a
    device in its place, which is never waited for.
    """
    flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(None, "not a regular file", str(path))
    return fd


def private_folder(path: Path) -> None:
    """Make a folder for its owner alone (0700), and those above it that are missing alike."""
    missing = [p for p in (path, *path.parents) if not p.is_dir()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)


def remove_folder(folder: Path, is_ours: Callable[[str], bool]) -> list[str]:
    """Remove the files of a folder whose names are ours, then the folder if that left it empty.

    The folder is held by a descriptor: what takes its name meanwhile is not touched. A link in its
    place is refused. Folders below it are never entered; they, pipes and devices stay. Returns the
    names that are left, sorted; [] where all is gone. Raises OSError.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        left = []
        for name in sorted(entry.name for entry in os.scandir(fd)):
            mode = _mode(name, fd)
            if is_ours(name) and (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                os.unlink(name, dir_fd=fd)
            else:
                left.append(name)
        if not left and os.path.samestat(os.fstat(fd), folder.lstat()):
            folder.rmdir()
        return left
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Names that were made in, moved into or removed from the folder are lasting."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _create_part(target: Path, mode: int) -> tuple[Path, int]:
    """A new locked file beside the target, and its descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        fd = os.open(part, flags, mode)
        with suppress(OSError):  # a file system without locks: nobody clears up there
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if part.exists():  # else somebody who clears up came between making and locking it
            return part, fd
        os.close(fd)


def _mode(name: str, folder: int) -> int:
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode


def _clear_abandoned(target: Path) -> None:
    """Remove what killed processes left of this target; `FileRefused` where one is at work."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.part")
    for part in target.parent.iterdir():
        if not pattern.fullmatch(part.name):
            continue
        try:
            fd = open_regular(part)
        except OSError:
            continue  # gone, or none of ours
        try:
            if os.fstat(fd).st_uid != os.getuid():
                continue
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_if_same(part, fd)
        except BlockingIOError:
            raise FileRefused(f"another process is writing {target}") from None
        except OSError:
            continue  # a file system without locks
        finally:
            os.close(fd)


def _remove_if_same(path: Path, fd: int) -> None:
    """Remove the name of an open file, unless it has become that of another one."""
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(fd), path.lstat()):
            path.unlink()


def kind_of(mode: int) -> str:
    """What a file is, in words: "a folder"; for what is no regular file."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")
