"""Opens folders and files that nobody but this user and root can write to.

kvarn runs compiled kernels as it reads them: a user who could replace one would run code in this
process. The rule:

- A folder is opened by a walk from `/`: each component relative to the descriptor of the one
  before. So the folder that was checked is the one that is used, even if a name changes meanwhile.
- Each folder on the way belongs to this user or root, and neither group nor others can write to it.
  A parent may also be root's and sticky, like /tmp, where nobody can rename files of others.
- Symbolic links that belong to this user or root are followed by the same rule.
- Files are opened relative to the folder, never through a link. They are regular, have the same
  owners and modes, and are read from the descriptor that was checked.

On Linux, rights that access control lists grant appear in the group's bits. On macOS they do not.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from .owners import (
    NOBODY,
    Untrusted,
    Writers,
    check_file,
    check_leaf,
    check_mode,
    check_owner,
    check_parent,
    quoted,
)

__all__ = ["MOST_LINKS", "Folder", "Untrusted", "open_folder", "open_installed"]

MOST_LINKS = 40
"""Symbolic links on the way to a folder: Linux's own limit."""

_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
# A folder that may be passed but not listed (/home with 0711) can be walked through all the same.
_WALK = _FLAGS | os.O_DIRECTORY | getattr(os, "O_PATH", getattr(os, "O_SEARCH", os.O_RDONLY))


def open_folder(path: Path, make: bool = False) -> Folder:
    """Open a folder by the rule above; `make`: make missing folders.

    All users can read what root makes (0755, 0644, before the umask), so that root can compile
    kernels for all. Folders and files of other users are 0700 and 0600.

    Raises `Untrusted`; `OSError` where a component is missing, is no folder or cannot be accessed.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "not the name of a folder: it holds a NUL", str(path))
    walk = _Walk(path.absolute())
    try:
        check_parent(os.fstat(walk.fd), walk.path)
        while walk.ahead:
            walk.step(make)
        check_leaf(os.fstat(walk.fd), walk.path)
    except BaseException:
        os.close(walk.fd)
        raise
    return Folder(walk.fd, walk.path)


def open_installed(package: Path, path: Path) -> Folder:
    """Open a folder below an installed package whose modules this process runs.

    Whoever can write to the package's folder can run code here without it. So its owner, and its
    group where that can write to it (installers leave that to the umask), may also write to `path`
    and its files; nobody else may, and no component below the package is a link.

    Raises `Untrusted`, and `OSError` where a component is missing.
    """
    fd = os.open(package, _WALK & ~os.O_NOFOLLOW)
    try:
        status, here = os.fstat(fd), package
        is_shared = status.st_mode & stat.S_IWGRP
        writers = Writers(status.st_uid, status.st_gid if is_shared else -1)
        for name in path.relative_to(package).parts:
            inner = os.open(name, _WALK, dir_fd=fd)
            os.close(fd)
            fd, here = inner, here / name
            status = os.fstat(fd)
            if not stat.S_ISDIR(status.st_mode):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(here))
            check_owner(status, here, "", writers)
            check_mode(status, here, "", writers)
    except BaseException:
        os.close(fd)
        raise
    return Folder(fd, here, writers)


class Folder:
    """An open folder that no other user but root and `writers` can write to. `path`: its path
    without links."""

    def __init__(self, fd: int, path: Path, writers: Writers = NOBODY) -> None:
        self.fd, self.path, self._writers = fd, path, writers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def read(self, name: str) -> bytes:
        """A file's content. Raises `Untrusted`, and `OSError` where it cannot be opened."""
        flags = os.O_RDONLY | os.O_NONBLOCK | _FLAGS
        try:
            fd = os.open(name, flags, dir_fd=self.fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                self._check_target(name)
            raise
        try:
            check_file(os.fstat(fd), self.path / name, self._writers)
            with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
                return file.readall()
        finally:
            os.close(fd)

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return os.access(name, os.F_OK, dir_fd=self.fd)

    def write(self, name: str, *parts: bytes) -> None:
        """Write a file that holds `parts`: readers see all of it or the file before it.

        Raises `Untrusted` where `read` would refuse the file that has the name now, and `OSError`.
        """
        temporary, fd = self._create(name)
        try:
            with os.fdopen(fd, "wb", buffering=0) as file:
                for part in parts:
                    _write_all(file.fileno(), part)
            self._check_target(name)
            os.replace(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=self.fd)
            raise

    def sizes(self, is_wanted: Callable[[str], bool]) -> list[int]:
        """The size in bytes of each file whose name is wanted."""
        return [status.st_size for status, _ in self._entries(is_wanted)]

    def _entries(self, is_wanted: Callable[[str], bool]) -> list[tuple[os.stat_result, str]]:
        """Status and name of each file whose name is wanted."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | _FLAGS, dir_fd=self.fd)
        try:
            entries = []
            for entry in os.scandir(fd):
                if is_wanted(entry.name):
                    with suppress(FileNotFoundError):  # another process has removed it
                        entries.append((entry.stat(follow_symlinks=False), entry.name))
            return entries
        finally:
            os.close(fd)

    def shrink(self, most_bytes: int, is_wanted: Callable[[str], bool]) -> None:
        """Remove the wanted files that were read or written longest ago, until the others have at
        most `most_bytes`. Raises `OSError`."""
        for status, name in sorted(self._entries(is_wanted), key=_last_use, reverse=True):
            most_bytes -= status.st_size
            if most_bytes < 0 and stat.S_ISREG(status.st_mode):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self.fd)

    def is_writable(self) -> bool:
        """Whether this user may make files in it, and the file system is not read-only."""
        return os.access(".", os.W_OK | os.X_OK, dir_fd=self.fd)

    def try_writing(self) -> None:
        """Write and remove a file of some size, as a full disk still takes empty files.

        Raises `OSError`.
        """
        name, fd = self._create("probe")
        try:
            _write_all(fd, bytes(1 << 16))
        finally:
            os.close(fd)
            os.unlink(name, dir_fd=self.fd)

    def _create(self, name: str) -> tuple[str, int]:
        """Make a file `NAME.<16 hex digits>.tmp`: its name and its descriptor."""
        temporary = f"{name}.{os.urandom(8).hex()}.tmp"
        mode = 0o644 if os.geteuid() == 0 else 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS
        return temporary, os.open(temporary, flags, mode, dir_fd=self.fd)

    def _check_target(self, name: str) -> None:
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            check_file(status, self.path / name, self._writers)


class _Walk:
    """The walk from `/` to a folder: `fd` is open at `path`; `ahead` has the rest, last first."""

    def __init__(self, path: Path) -> None:
        self.ahead, self._walked, self._n_links = _backwards(path), list[str](), 0
        self.fd = os.open("/", _WALK)

    @property
    def path(self) -> Path:
        return Path("/", *self._walked)

    def step(self, make: bool) -> None:
        """Open the next component; see `open_folder`."""
        name = self.ahead.pop()
        try:
            status = self._status(name, make)
            if stat.S_ISLNK(status.st_mode):
                self._follow(name, status)
            else:
                self._move(os.open(name, _WALK, dir_fd=self.fd))
                self._walked = self._walked[:-1] if name == ".." else [*self._walked, name]
                check_parent(os.fstat(self.fd), self.path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / name)) from None

    def _status(self, name: str, make: bool) -> os.stat_result:
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            if not make:
                raise
        with suppress(FileExistsError):  # another process came first
            os.mkdir(name, 0o755 if os.geteuid() == 0 else 0o700, dir_fd=self.fd)
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def _follow(self, name: str, status: os.stat_result) -> None:
        if status.st_uid not in (0, os.geteuid()):
            path = self.path / name
            reason = f"{path} is a symbolic link of user {status.st_uid}"
            raise Untrusted(reason, f"rm {quoted(path)}")
        self._n_links += 1
        if self._n_links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = Path(os.readlink(name, dir_fd=self.fd))
        if target.is_absolute():
            self._move(os.open("/", _WALK))
            self._walked = []
        self.ahead += _backwards(target)

    def _move(self, fd: int) -> None:
        os.close(self.fd)
        self.fd = fd


def _backwards(path: Path) -> list[str]:
    return [name for name in reversed(path.parts) if name not in ("/", "//")]


def _last_use(entry: tuple[os.stat_result, str]) -> float:
    status, _ = entry
    return max(status.st_atime, status.st_mtime)  # most systems note reading once a day


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
