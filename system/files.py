"""Writing and removing files without touching anything that is not kvarn's.

The rule of the whole project:

- Content goes to a new file with a random name beside the target, opened exclusively. When all of
  it is on disk, the file takes the target's name: a reader sees the old file or the new one.
- A target is a regular file or does not exist. Links, folders, pipes and devices are refused.
- Only regular files with a name that kvarn gives are removed, or a link with such a name, never
  the link's target. A folder is removed when it is empty.

    OUT.gguf                            the target
    .OUT.gguf.<16 hex digits>.part      a file that a process is writing, locked (flock) meanwhile

A process that is killed leaves its `.part`. The next one that writes the same target removes it,
unless a process still holds its lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import KvarnError

PRIVATE = 0o600
"""Mode of files that only the user may read."""
SHARED = 0o666
"""Mode of files that the user names, before the umask."""
GGUF_MAGIC = b"GGUF"
"""The first bytes of a GGUF file; here, as `runtime.gguf` imports NumPy."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What only writing fails by, and the system names no file then."""


class FileRefused(KvarnError):
    """A path that kvarn refuses to write to or to remove."""


@contextmanager
def new_file(target: Path, mode: int = SHARED) -> Iterator[Path]:
    """A new, empty file to write to. It becomes `target` when the block ends without an error.

    The file is synced before it takes the name, and the folder after that. An error removes the
    file and leaves `target` as it was. mode: permissions before the umask.

    Raises `FileRefused` where `target` is no regular file, where its folder does not exist, and
    where another process is writing it; OSError, which names `target`, where the system refuses.
    """
    try:
        with full_named(target), _new_file(target, mode) as part:
            yield part
    except OSError as error:
        if _is_part(str(error.filename or ""), target):
            error.filename = str(target)
        raise


@contextmanager
def full_named(target: Path) -> Iterator[None]:
    """Name `target` in an error of the block that says that the disk, or a file, is full."""
    try:
        yield
    except OSError as error:
        if not error.filename and error.errno in _FULL:
            error.filename = str(target)
        raise


@contextmanager
def _new_file(target: Path, mode: int) -> Iterator[Path]:
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
    """Write `data` to `target`; after a crash it has the old content or the new, never a part.

    Raises what `new_file` raises.
    """
    with new_file(target, mode) as part, part.open("r+b") as file:
        file.write(data)


def check_target(target: Path) -> None:
    """Raise `FileRefused` unless the target is a regular file, or absent from a folder that exists.

    Links are refused, too: the user has to name the file that a link points to.
    """
    if not target.name or target.name == "..":
        raise FileRefused(f"{str(target)!r} is not the name of a file to write")
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise FileRefused(
                f"{target.parent}: no such folder to write {target.name} to"
            ) from None
        return
    if not stat.S_ISREG(mode):
        raise FileRefused(
            f"{target} is {kind_of(mode)}: expected the name of a regular file, or a new one"
        )


def open_regular(path: Path, writable: bool = False, mode: int = SHARED) -> int:
    """A descriptor of a regular file. `writable`: to read and write; makes the file if needed.

    Raises `OSError`, also where the path's last component is a link, a pipe or a device. Never
    waits for a pipe.
    """
    flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(None, "not a regular file", str(path))
    return fd


def disk_free(path: Path) -> int:
    """Bytes that are free on the disk of a path, which need not exist."""
    place = path.absolute()
    return shutil.disk_usage(next(p for p in (place, *place.parents) if p.is_dir())).free


def remove_folder(
    folder: Path, is_ours: Callable[[str], bool], rank: Callable[[str], int] = lambda name: 0
) -> list[str]:
    """Remove a folder's files and links whose names are ours, then the folder if it is empty.

    rank: names of a lower rank are removed first.
    A descriptor keeps the folder open, so another folder that takes its name is not touched. A link
    in its place is refused. Inner folders, pipes and devices stay. Returns the sorted names of what
    stays. Raises OSError.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        left = []
        for name in sorted((entry.name for entry in os.scandir(fd)), key=rank):
            mode = _mode(name, fd)
            if is_ours(name) and (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                os.unlink(name, dir_fd=fd)
            else:
                left.append(name)
        if not left and os.path.samestat(os.fstat(fd), folder.lstat()):
            folder.rmdir()
        return sorted(left)
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Sync a folder, so that new, moved and removed names are on disk."""
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
        with suppress(OSError):  # without locks, `_clear_abandoned` leaves the file alone
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if part.exists():  # else another process removed it before it was locked
            return part, fd
        os.close(fd)


def _mode(name: str, folder: int) -> int:
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode


def _clear_abandoned(target: Path) -> None:
    """Remove files of killed processes. Raises `FileRefused` while a process writes this target."""
    for part in target.parent.iterdir():
        if not _is_part(part, target):
            continue
        try:
            fd = open_regular(part)
        except OSError:
            continue  # it does not exist any more, or is not kvarn's
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


def _is_part(path: str | Path, target: Path) -> bool:
    """Whether a path has the name of a file that becomes `target`."""
    pattern = rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.part"
    return re.fullmatch(pattern, Path(path).name) is not None


def _remove_if_same(path: Path, fd: int) -> None:
    """Remove an open file, unless another one has taken its name."""
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(fd), path.lstat()):
            path.unlink()


def kind_of(mode: int) -> str:
    """The kind of a file that is not regular, in words: "a folder"."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")
