"""The files of compiled kernels: found, written whole or not at all. Imports no Numba.

    offset  bytes
         0     32  SHA-256 of the rest
        32      …  pickle of what is kept, see `cache` and `code`

A damaged file counts as absent. Files are in the folders of `folders`.
"""

import hashlib
import pickle
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...system.terminal import say
from . import folders

_listeners: list[Callable[[str], None]] = []


class Counts:
    """What this process has done: kernels compiled, loaded from files, and not to be cached."""

    compiled: int = 0
    loaded: int = 0
    uncachable: tuple[str, ...] = ()


def on_compile(listener: Callable[[str], None]) -> None:
    """Have `listener(name of the kernel)` called before each compilation, for a progress line."""
    _listeners.append(listener)


def compiling(name: str) -> None:
    """Count a kernel that is about to be compiled, and tell who listens."""
    Counts.compiled += 1
    for listener in _listeners:
        listener(name)


def find(name: str) -> Any:
    """What the file of this name holds, None if there is none; counted as a kernel loaded."""
    for folder in folders.readable():
        if (payload := _read(folder / name)) is not None:
            Counts.loaded += 1
            return payload
    return None


def keep(name: str, payload: bytes) -> None:
    """Write a file for this and other processes: `payload` is the pickle."""
    # Sources that have changed since (an upgrade) would find these kernels under their key.
    if folders.sources_hash() == folders.SOURCES:
        _Places.write(name, payload)


class _Places:
    """The folder that takes new kernels: the first root that works, found on first use."""

    roots: list[Path] | None = None
    said = False

    @classmethod
    def write(cls, name: str, payload: bytes) -> None:
        """Keep one kernel, in the next folder if this one fails; in none if all do."""
        if cls.roots is None:
            cls.roots = folders.candidates()
            if cls._usable():
                folders.prune(cls.roots[0] / "kernels")
        while cls.roots:
            try:
                folder = cls.roots[0] / "kernels" / folders.key()
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                return _write(folder / name, payload)
            except OSError as error:
                cls._next(f"{error.filename or cls.roots[0]}: {error.strerror or error}")

    @classmethod
    def _usable(cls) -> bool:
        """Skip roots that cannot be written to; whether one is left."""
        while cls.roots:
            against = folders.writable(cls.roots[0])
            if against is None:
                return True
            cls._next(against)
        return False

    @classmethod
    def _next(cls, against: str) -> None:
        assert cls.roots
        del cls.roots[0]
        if not cls.said:
            cls.said = True
            instead = f"using {cls.roots[0]}" if cls.roots else "compiling anew in every process"
            say(
                f"cannot keep compiled kernels ({against}): {instead}; "
                "set KVARN_CACHE to a folder with room that you can write to"
            )


def _read(path: Path) -> Any:
    """What a kernel's file holds, or None if it is absent or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        return None
    return pickle.loads(data[32:])


def _write(path: Path, payload: bytes) -> None:
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex[:16]}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(hashlib.sha256(payload).digest())
            file.write(payload)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
