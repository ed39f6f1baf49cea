"""Files of one's own, files of others, and a second user who tries."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kvarn.system.trust import open_folder

OTHER = 54_321  # a user and a group that nobody is
GOOD, EVIL = b"mine", b"theirs"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make what others own")


def made(folder: Path, content: bytes = GOOD) -> Path:
    """A folder with a file, both of which nobody else can write to."""
    folder.mkdir(parents=True, mode=0o755)
    (folder / "file").write_bytes(content)
    (folder / "file").chmod(0o644)
    return folder


def foreign(folder: Path) -> Path:
    """The same, of another user."""
    made(folder, EVIL)
    os.chown(folder, OTHER, OTHER)
    os.chown(folder / "file", OTHER, OTHER)
    return folder


def read(folder: Path, name: str = "file") -> bytes:
    with open_folder(folder) as opened:
        return opened.read(name)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def n_open() -> int:
    """Descriptors of this process."""
    return sum(_is_open(fd) for fd in range(512))


def _is_open(fd: int) -> bool:
    with suppress(OSError):
        os.fstat(fd)
        return True
    return False


@contextmanager
def second_user(work: Callable[[], None]) -> Iterator[int]:
    """A process of another user that does `work`; killed when the block ends."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
