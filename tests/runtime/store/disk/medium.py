"""A medium that loses power: what was not synced may be gone, torn, or there.

Wraps the functions of `disk.files`. Writes go through to the real files, and what they replace is
remembered until the file is synced; names made or removed, until their folder is synced.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvarn.runtime.store.disk import files

CALLS = ("open_file", "write_at", "make_room", "sync", "sync_folder", "remove", "replace")
SECTOR = 512


class PowerCut(BaseException):
    """The machine stopped here."""


@dataclass
class Write:
    offset: int
    before: bytes
    after: bytes


@dataclass
class Medium:
    """Counts calls; at number `stop_at` it calls `fault`, before, in the middle of or after it."""

    stop_at: int
    fault: Callable[[], None]
    seed: int = 0
    calls: int = 0
    names: list[str] = field(default_factory=list)
    _paths: dict[int, Path] = field(default_factory=dict)
    _writes: dict[Path, list[Write]] = field(default_factory=dict)
    _sizes: dict[Path, int] = field(default_factory=dict)
    _made: set[Path] = field(default_factory=set)
    _removed: dict[Path, bytes] = field(default_factory=dict)

    def inherit(self, other: Medium) -> None:
        """Go on after a process was killed, not the machine: what it wrote is there, unsynced."""
        self._writes, self._sizes = other._writes, other._sizes
        self._made, self._removed = other._made, other._removed

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._real = {name: getattr(files, name) for name in CALLS}

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """The medium stands in for the real calls."""
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(files, name, self._wrapped(name))
            yield

    def lose_power(self) -> None:
        """Undo a random part of what is not synced, as the next start would find it."""
        for path, writes in self._writes.items():
            self._lose(path, writes)
        for path in self._made:
            if self._random.random() < 0.5:
                path.unlink(missing_ok=True)
        for path, content in self._removed.items():
            if self._random.random() < 0.5:
                path.write_bytes(content)

    def _lose(self, path: Path, writes: list[Write]) -> None:
        if not path.exists():
            return
        all_gone = self._random.random() < 0.3
        with path.open("r+b") as file:
            for write in reversed(writes):
                n = len(write.after)
                kept = 0 if all_gone else self._random.choice((0, n, n // 2 // SECTOR * SECTOR))
                file.seek(write.offset + kept)
                file.write(write.before[kept:])
            if all_gone:
                file.truncate(self._sizes[path])

    def _wrapped(self, name: str) -> Callable[..., Any]:
        real, note = self._real[name], getattr(self, f"_{name}", None)

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            self.names.append(name)
            faulty = self.calls == self.stop_at
            when = self._random.choice(("before", "half", "after")) if faulty else ""
            if when == "before" or (when == "half" and name != "write_at"):
                self.fault()
            if when == "half":
                fd, data, offset = arguments
                arguments = fd, memoryview(data).cast("B")[: len(bytes(data)) // 2], offset
            if note is not None and name != "open_file":
                note(*arguments)
            existed = name == "open_file" and arguments[0].exists()
            result = real(*arguments, **options)
            if name == "open_file":
                self._opened(arguments[0], result, existed)
            if faulty:
                self.fault()
            return result

        return call

    def _opened(self, path: Path, fd: int, existed: bool) -> None:
        self._paths[fd] = path
        if not existed:
            self._made.add(path)

    def _write_at(self, fd: int, data: Any, offset: int) -> None:
        path, after = self._paths[fd], bytes(data)
        self._sizes.setdefault(path, os.fstat(fd).st_size)
        before = os.pread(fd, len(after), offset).ljust(len(after), b"\0")
        self._writes.setdefault(path, []).append(Write(offset, before, after))

    def _make_room(self, fd: int, n_bytes: int, offset: int) -> None:
        self._sizes.setdefault(self._paths[fd], os.fstat(fd).st_size)
        self._writes.setdefault(self._paths[fd], [])

    def _sync(self, fd: int) -> None:
        self._writes.pop(self._paths[fd], None)
        self._sizes.pop(self._paths[fd], None)

    def _sync_folder(self, path: Path) -> None:
        self._made = {made for made in self._made if made.parent != path}
        self._removed = {gone: data for gone, data in self._removed.items() if gone.parent != path}

    def _remove(self, path: Path) -> None:
        if path.exists():
            self._removed[path] = path.read_bytes()
            self._writes.pop(path, None)


def power_cut() -> None:
    raise PowerCut


def disk_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))
