"""Folders and files that only this user and root can have written.

Compiled kernels are run as they are read: another user who could replace one would run code in this
process. The rule:

- A folder is opened by a walk from `/`, each component relative to the descriptor of the one
  before. What is checked is what is used, even if something is renamed or replaced meanwhile.
- Each folder on the way belongs to this user or root, and neither group nor others can write to it.
  A parent may also be root's and sticky, like /tmp: there nobody renames files of others.
- Symbolic links that belong to this user or root are followed by the same rule.
- Files are opened relative to the folder, never through a link. They are regular, with the same
  owners and modes, and are read from the descriptor that was checked.

On Linux, what access control lists grant shows in the group's bits. On macOS it does not show.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from .errors import KvarnError
from .text import one_line

MOST_LINKS = 40
"""Symbolic links on the way to a folder: Linux's own limit."""

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
# A folder that may be passed but not listed (/home with 0711) can be walked through all the same.
_WALK = _FLAGS | os.O_DIRECTORY | getattr(os, "O_PATH", getattr(os, "O_SEARCH", os.O_RDONLY))
_LINE = 4096  # a path as long as Linux takes


class Untrusted(KvarnError):
    """Another user may have written what is to be read.

    what   the path and what was found
    mend   the command that corrects it
    """

    def __init__(self, what: str, mend: str) -> None:
        self.what, self.mend = one_line(what, _LINE), one_line(mend, _LINE)
        super().__init__(f"{self.what}: {self.mend}")


def open_folder(path: Path, make: bool = False) -> Folder:
    """Open a folder by the rule above; `make`: make the folders that are missing.

    What root makes can be read by all (0755, 0644, before the umask), so that root can compile
    kernels for all users. What others make is 0700 and 0600.

    Raises `Untrusted`; `OSError` where a component is missing, is no folder or cannot be accessed.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "not the name of a folder: it holds a NUL", str(path))
    walk = _Walk(path.absolute())
    try:
        _check_parent(os.fstat(walk.fd), walk.path)
        while walk.ahead:
            walk.step(make)
        _check_leaf(os.fstat(walk.fd), walk.path)
    except BaseException:
        os.close(walk.fd)
        raise
    return Folder(walk.fd, walk.path)


class Folder:
    """An open folder that no other user but root can write to. `path`: its path without links."""

    def __init__(self, fd: int, path: Path) -> None:
        self.fd, self.path = fd, path

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
            _check_file(os.fstat(fd), self.path / name)
            with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
                return file.readall()
        finally:
            os.close(fd)

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return os.access(name, os.F_OK, dir_fd=self.fd)

    def write(self, name: str, *parts: bytes) -> None:
        """Write a file that holds `parts`: readers find all of it or the file before it.

        Raises `Untrusted` where `read` would refuse what has the name now, and `OSError`.
        """
        aside, fd = self._create(name)
        try:
            with os.fdopen(fd, "wb", buffering=0) as file:
                for part in parts:
                    _write_all(file.fileno(), part)
            self._check_target(name)
            os.replace(aside, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(aside, dir_fd=self.fd)
            raise

    def sizes(self, is_wanted: Callable[[str], bool]) -> list[int]:
        """The size in bytes of each file whose name is wanted."""
        return [found.st_size for found, _ in self._entries(is_wanted)]

    def _entries(self, is_wanted: Callable[[str], bool]) -> list[tuple[os.stat_result, str]]:
        """State and name of each file whose name is wanted."""
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
        """Remove the wanted files that were read or written longest ago, until the others hold at
        most `most_bytes`. Raises `OSError`."""
        for found, name in sorted(self._entries(is_wanted), key=_last_use, reverse=True):
            most_bytes -= found.st_size
            if most_bytes < 0 and stat.S_ISREG(found.st_mode):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self.fd)

    def is_writable(self) -> bool:
        """Whether this user may make files in it, and the file system is not read-only."""
        return os.access(".", os.W_OK | os.X_OK, dir_fd=self.fd)

    def try_writing(self, n_bytes: int = 1 << 16) -> None:
        """Write and remove a file, to raise what that raises: a full disk takes empty files."""
        name, fd = self._create("probe")
        try:
            _write_all(fd, bytes(n_bytes))
        finally:
            os.close(fd)
            os.unlink(name, dir_fd=self.fd)

    def _create(self, name: str) -> tuple[str, int]:
        """Make a file `NAME.<16 hex digits>.tmp`: its name and its descriptor."""
        aside = f"{name}.{os.urandom(8).hex()}.tmp"
        mode = 0o644 if os.geteuid() == 0 else 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS
        return aside, os.open(aside, flags, mode, dir_fd=self.fd)

    def _check_target(self, name: str) -> None:
        with suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            _check_file(found, self.path / name)


class _Walk:
    """The walk from `/` to a folder: `fd` is open at `path`; `ahead` is the rest, last first."""

    def __init__(self, path: Path) -> None:
        self.ahead, self._at, self._n_links = _backwards(path), list[str](), 0
        self.fd = os.open("/", _WALK)

    @property
    def path(self) -> Path:
        return Path("/", *self._at)

    def step(self, make: bool) -> None:
        """Open the next component; see `open_folder`."""
        name = self.ahead.pop()
        try:
            found = self._found(name, make)
            if stat.S_ISLNK(found.st_mode):
                self._follow(name, found)
            else:
                self._move(os.open(name, _WALK, dir_fd=self.fd))
                self._at = self._at[:-1] if name == ".." else [*self._at, name]
                _check_parent(os.fstat(self.fd), self.path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / name)) from None

    def _found(self, name: str, make: bool) -> os.stat_result:
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            if not make:
                raise
        with suppress(FileExistsError):  # another process came first
            os.mkdir(name, 0o755 if os.geteuid() == 0 else 0o700, dir_fd=self.fd)
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def _follow(self, name: str, found: os.stat_result) -> None:
        if found.st_uid not in (0, os.geteuid()):
            path = self.path / name
            what = f"{path} is a symbolic link of user {found.st_uid}"
            raise Untrusted(what, f"rm {_quoted(path)}")
        self._n_links += 1
        if self._n_links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = Path(os.readlink(name, dir_fd=self.fd))
        if target.is_absolute():
            self._move(os.open("/", _WALK))
            self._at = []
        self.ahead += _backwards(target)

    def _move(self, fd: int) -> None:
        os.close(self.fd)
        self.fd = fd


def _backwards(path: Path) -> list[str]:
    return [name for name in reversed(path.parts) if name not in ("/", "//")]


def _check_parent(found: os.stat_result, path: Path) -> None:
    _check_owner(found, path)
    if not (found.st_uid == 0 and found.st_mode & stat.S_ISVTX):
        _check_mode(found, path)


def _check_leaf(found: os.stat_result, path: Path) -> None:
    _check_owner(found, path)
    if found.st_mode & _OTHERS and found.st_mode & stat.S_ISVTX:
        raise Untrusted(f"{path} can be written to by all users", "choose a folder below it")
    _check_mode(found, path)


def _check_file(found: os.stat_result, path: Path) -> None:
    remove = f"rm -r {_quoted(path)}"  # its content may be another user's: chmod is no remedy
    if not stat.S_ISREG(found.st_mode):
        raise Untrusted(f"{path} is no regular file", remove)
    _check_owner(found, path, remove)
    _check_mode(found, path, remove)


def _check_owner(found: os.stat_result, path: Path, mend: str = "") -> None:
    if found.st_uid not in (0, me := os.geteuid()):
        what = f"{path} belongs to user {found.st_uid}"
        raise Untrusted(what, mend or f"chown {me} {_quoted(path)}")


def _check_mode(found: os.stat_result, path: Path, mend: str = "") -> None:
    if found.st_mode & _OTHERS:
        who = "everyone" if found.st_mode & stat.S_IWOTH else f"group {found.st_gid}"
        what = f"{path} can be written to by {who} (mode {stat.S_IMODE(found.st_mode):04o})"
        raise Untrusted(what, mend or f"chmod go-w {_quoted(path)}")


def _last_use(entry: tuple[os.stat_result, str]) -> float:
    found, _ = entry
    return max(found.st_atime, found.st_mtime)  # most systems note reading once a day


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
