"""The files of compiled kernels, each written whole or not at all. Imports no Numba.

    offset  bytes
         0     32  SHA-256 of "KEY/NAME", a zero byte and the payload
        32      …  payload: of `.kernel` files see `cached`, of `.code` files see `machine_code`

KEY and NAME are the names of folder and file. A damaged file counts as absent, as does one that was
renamed or moved here from another folder: the kernel is compiled again and replaces it.
"""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, TypeVar

from ...system.terminal import say
from ...system.trust import Folder, Untrusted
from . import folders
from .folders import CHOOSE, KERNELS, Against

T = TypeVar("T")

_DIGEST = 32


class Damaged(ValueError):
    """A file's content is not what kvarn writes."""


class Unlinkable(Exception):
    """Machine code calls functions that a process may lack; the text names them."""


class Counts:
    """Kernels that this process compiled, loaded from files, and could not keep on disk.

    seconds: what first calls of kernels waited for them to be compiled.
    names: of the files that were loaded or kept, and others that could not be kept.
    """

    compiled: int = 0
    loaded: int = 0
    seconds: float = 0.0
    uncachable: tuple[str, ...] = ()
    names: ClassVar[set[str]] = set()


def find(name: str, parse: Callable[[bytes], T]) -> T | None:
    """What `parse` makes of a file's payload; None without such a file, or if it is damaged."""
    for folder in _Places.readable():
        try:
            found = parse(_content(folder.read(name), name))
        except (OSError, Damaged):
            continue  # both count as absent
        except Untrusted as error:
            _Places.say(f"cannot use a compiled kernel: {Against.of(error, folder.path)}")
            continue
        except Unlinkable as error:
            _Places.say(f"cannot use compiled kernels, compiling again: {name} {error}")
            continue
        Counts.loaded += name.endswith(KERNELS)
        Counts.names.add(name)
        return found
    return None


def has(names: Iterable[str]) -> bool:
    """Whether there are files of all these names; they are not read."""
    return all(any(folder.has(name) for folder in _Places.readable()) for name in names)


def keep(name: str, payload: bytes) -> None:
    """Write a file for later processes, unless the sources have changed since this one started.

    A kernel imported after the change would get the name that it had before.
    """
    Counts.names.add(name)
    if folders.sources_hash() == folders.SOURCES:
        _Places.write(name, payload)
    else:
        _Places.say(
            "cannot keep compiled kernels: kvarn's sources have changed since this process "
            "began; start it again"
        )


def place() -> Path | None:
    """The folder for new kernels, if there is one."""
    _Places.readable()
    return _Places.target.path if _Places.target else None


class _Places:
    """The folders of this process's kernels, opened on first use.

    roots     roots not tried yet
    opened    folders to read from, in this order
    target    the last of them, where new kernels go; None if no folder can be written to
    against   why `target` is not below the first root; told when there is a kernel to keep
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
            try:
                came = folders.open_bundled()
                cls.opened = (came,) if came else ()
            except Untrusted as error:
                cls.say(f"cannot use the kernels that came with kvarn: {error}")
            if not cls.roots:
                cls.against = Against("this user has no home folder", CHOOSE)
            cls._next(None)
        return cls.opened

    @classmethod
    def write(cls, name: str, payload: bytes) -> None:
        """Write a file to `target`; if that fails, to the next folder that can be written to."""
        cls.readable()
        if cls.against:
            cls._cannot(cls.against)
        while target := cls.target:
            if not cls.pruned:
                cls.pruned = True
                folders.prune(target)
            try:
                return target.write(name, _digest(payload, name), payload)
            except Untrusted as error:
                return cls.say(f"cannot keep a compiled kernel: {Against.of(error, target.path)}")
            except OSError as error:
                cls._next(Against.of(error, target.path))
        return None

    @classmethod
    def _next(cls, told: Against | None) -> None:
        """Open roots until one can be written to. Tells `told`, or else what was untrusted."""
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
        instead = f"using {cls.target.path}" if cls.target else "compiling again in every process"
        cls.say(f"cannot keep compiled kernels, {instead}: {against}")

    @classmethod
    def say(cls, line: str) -> None:
        """Tell the user, once per process: `kvarn doctor` tells the rest."""
        if not cls.said:
            cls.said = True
            say(line)


def _content(data: bytes, name: str) -> bytes:
    payload = data[_DIGEST:]
    if data[:_DIGEST] != _digest(payload, name):
        raise Damaged(f"{name}: its checksum does not match its content")
    return payload


def _digest(payload: bytes, name: str) -> bytes:
    state = hashlib.sha256(f"{folders.key()}/{name}\0".encode())
    state.update(payload)
    return state.digest()
