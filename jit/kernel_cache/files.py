"""The files of compiled kernels: found, written whole or not at all. Imports no Numba.

    offset  bytes
         0     32  SHA-256 of "KEY/NAME", a byte 0 and the rest: key of the folder, name of the file
        32      …  what is kept: see `jit.cached` for .kernel, `code` for .code

A damaged file counts as absent, and so does one of another name or of another machine's folder; the
kernel is compiled anew and replaces it. Folders and access to them: see `folders`.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ...system.terminal import say
from ...system.trust import Folder, Untrusted
from . import folders
from .folders import CHOOSE, Against

T = TypeVar("T")

_DIGEST = 32


def _nobody(name: str) -> None:
    """Listens to no compilation."""


_listener: Callable[[str], None] = _nobody


class Damaged(ValueError):
    """A file does not hold what kvarn writes."""


class Counts:
    """What this process has done: kernels compiled, loaded from files, and not to be cached.

    seconds: compiling the kernels of recorded steps, what their first callers waited.
    """

    compiled: int = 0
    loaded: int = 0
    seconds: float = 0.0
    uncachable: tuple[str, ...] = ()


def on_compile(listener: Callable[[str], None]) -> None:
    """Have `listener(name of the kernel)` called before each compilation, for a progress line.

    It takes the place of the one before it.
    """
    global _listener  # noqa: PLW0603  there is one terminal to tell
    _listener = listener


def missing(name: str) -> None:
    """Tell who listens of a kernel that is about to be compiled."""
    _listener(name)


@contextmanager
def compiling() -> Iterator[None]:
    """Count the seconds that compiling takes, with what the listener does."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        Counts.seconds += time.perf_counter() - begin


def find(name: str, parse: Callable[[bytes], T]) -> T | None:
    """What `parse` makes of the file of this name, counted as a kernel loaded.

    None if there is none, or if `parse` raises `Damaged`.
    """
    for folder in _Places.readable():
        try:
            found = parse(_content(folder.read(name), name))
        except (OSError, Damaged):
            continue  # absent, as far as this process is concerned
        except Untrusted as error:
            _Places.say(f"a compiled kernel is not used: {Against.of(error, folder.path)}")
            continue
        Counts.loaded += 1
        return found
    return None


def keep(name: str, payload: bytes) -> None:
    """Write a file for this and other processes."""
    # Sources that have changed since (an upgrade) would find these kernels under their key.
    if folders.sources_hash() == folders.SOURCES:
        _Places.write(name, payload)


def place() -> Path | None:
    """The folder that takes new kernels, if one does."""
    _Places.readable()
    return _Places.target.path if _Places.target else None


class _Places:
    """The folders of this process's kernels, opened on first use.

    roots     those not tried yet
    opened    the folders that are read, in their order
    target    the one that takes new kernels, the last of them
    against   why it is not that of the first root; said when there is a kernel to keep
    """

    roots: list[Path] | None = None
    opened: tuple[Folder, ...] = ()
    target: Folder | None = None
    against: Against | None = None
    said = pruned = False

    @classmethod
    def readable(cls) -> tuple[Folder, ...]:
        if cls.roots is None:
            cls.roots = folders.candidates()
            if not cls.roots:
                cls.against = Against("this user has no home folder", CHOOSE)
            cls._next(None)
        return cls.opened

    @classmethod
    def write(cls, name: str, payload: bytes) -> None:
        """Keep one kernel, in the next folder if this one fails; in none if all do."""
        cls.readable()
        if cls.against:
            cls._cannot(cls.against)
        while target := cls.target:
            if not cls.pruned:
                cls.pruned = True
                folders.prune(target.path.parent)
            try:
                return target.write(name, _digest(payload, name), payload)
            except Untrusted as error:
                return cls.say(f"a compiled kernel is not kept: {Against.of(error, target.path)}")
            except OSError as error:
                cls._next(Against.of(error, target.path))
        return None

    @classmethod
    def _next(cls, told: Against | None) -> None:
        """Open further roots until one can be written to; say what was refused, after `told`."""
        assert cls.roots is not None
        cls.target = None
        while cls.roots and cls.target is None:
            root = cls.roots.pop(0)
            try:
                folder = folders.open_kernels(root)
            except Untrusted as error:
                told = told or Against.of(error, root)
                continue
            except OSError as error:
                cls.against = cls.against or Against.of(error, root)
                continue
            cls.opened += (folder,)
            if folder.is_writable():
                cls.target = folder
            else:
                cls.against = cls.against or Against(f"{folder.path}: cannot be written to", CHOOSE)
        if told:
            cls._cannot(told)

    @classmethod
    def _cannot(cls, against: Against) -> None:
        instead = f"using {cls.target.path}" if cls.target else "compiling anew in every process"
        cls.say(f"cannot keep compiled kernels, {instead}: {against}")

    @classmethod
    def say(cls, line: str) -> None:
        """One line in all: what stands against more of them, `kvarn doctor` tells."""
        if not cls.said:
            cls.said = True
            say(line)


def _content(data: bytes, name: str) -> bytes:
    payload = data[_DIGEST:]
    if data[:_DIGEST] != _digest(payload, name):
        raise Damaged(f"{name}: its checksum is not that of its content")
    return payload


def _digest(payload: bytes, name: str) -> bytes:
    state = hashlib.sha256(f"{folders.key()}/{name}\0".encode())
    state.update(payload)
    return state.digest()
