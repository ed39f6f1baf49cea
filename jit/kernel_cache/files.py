"""The files of compiled kernels, each written whole or not at all. Imports no Numba.

    offset  bytes
         0     32  SHA-256 of "KEY/NAME", a zero byte and the payload
        32      …  payload: of `.kernel` files see `cached`, of `.code` files see `machine_code`

KEY and NAME are the names of folder and file. A damaged file counts as absent, and so does a file
with another name or from another folder: the kernel is compiled again and replaces it. Kernels
that came with the installation stay as they are: the new one is kept in the user's cache.
"""

import hashlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import ClassVar, TypeVar

from ...system.locks import locked
from ...system.terminal import say
from ...system.trust import Folder, Untrusted
from .. import host, roots
from . import folders
from .folders import CHOOSE_FOLDER, KERNELS, NO_HOME, CacheProblem

T = TypeVar("T")

_DIGEST = 32
_PATIENCE = 60.0  # seconds: the largest kernel takes 10 on a slow machine


class Damaged(ValueError):
    """A file has content that kvarn does not write."""


class Unlinkable(Exception):
    """Machine code calls functions that a process may lack; the message names them."""


class Counts:
    """Kernels that this process compiled, loaded from files, and could not keep on disk.

    seconds  time that first calls waited for compilations
    names    files that were loaded, were kept or could not be kept
    """

    compiled: int = 0
    loaded: int = 0
    seconds: float = 0.0
    uncachable: tuple[str, ...] = ()
    names: ClassVar[set[str]] = set()


def find(name: str, parse: Callable[[bytes], T]) -> T | None:
    """The payload of a file, parsed; None if the file is missing or damaged."""
    for folder in _folders.readable():
        try:
            parsed = parse(_content(folder.read(name), _folders.key_of(folder), name))
        except OSError:
            continue
        except Damaged:  # counts as absent
            if folder is _folders.bundled:
                _folders.warn(
                    f"a kernel that came with kvarn is damaged, compiling it: install kvarn again: "
                    f"{folder.path / name}"
                )
            continue
        except Untrusted as error:
            _folders.warn(f"cannot use a compiled kernel: {CacheProblem.of(error, folder.path)}")
            continue
        except Unlinkable as error:
            _folders.warn(f"cannot use compiled kernels, compiling again: {name} {error}")
            continue
        Counts.loaded += name.endswith(KERNELS)
        Counts.names.add(name)
        return parsed
    if name.endswith(KERNELS):
        _folders.tell_why_not_bundled()
    return None


def has(names: Iterable[str]) -> bool:
    """Whether files of all these names exist; reads none."""
    return all(any(folder.has(name) for folder in _folders.readable()) for name in names)


def keep(name: str, payload: bytes) -> None:
    """Write a file for later processes, unless the sources have changed since this one started.

    A kernel imported after the change would get the name of the old one.
    """
    Counts.names.add(name)
    if folders.sources_hash() == folders.SOURCES:
        _folders.write(name, payload)
    else:
        _folders.warn(
            "cannot keep compiled kernels: kvarn's sources have changed since this process "
            "began; start it again"
        )


def claim(name: str) -> AbstractContextManager[None]:
    """In the block, this process alone compiles the file's kernel, of those that share a folder:
    the others wait, and then find the file. Waits for a minute at most."""
    _folders.readable()
    if target := _folders.target:
        return locked(target.fd, f"{name}.lock", _PATIENCE)
    return nullcontext()


def bundle(to: Path) -> None:
    """Copy the machine code that this process has used, and the digests by which it is found
    without a search, to the folder `bundled` of an installation, for this process's CPU.

    Raises `Damaged`, `OSError` and `Untrusted`.
    """
    key = folders.bundled_key()
    (place := to / "kernels" / key).mkdir(parents=True)
    for name in sorted(name for name in Counts.names if name.endswith((".code", ".digests"))):
        for folder in _folders.readable():
            if folder.has(name):
                payload = _content(folder.read(name), _folders.key_of(folder), name)
                (place / name).write_bytes(_digest(payload, key, name) + payload)


def place() -> Path | None:
    """The folder for new kernels, if there is one."""
    _folders.readable()
    return _folders.target.path if _folders.target else None


class _Folders:
    """The folders of this process's kernels, opened on first use.

    roots    roots not tried yet
    opened   folders to read from, in this order
    bundled  the first of them if it came with the installation
    target   the last of them, for new kernels; None if no folder can be written to
    problem  why `target` is not below the first root; reported when there is a kernel to keep
    """

    def __init__(self) -> None:
        self.roots: list[Path] | None = None
        self.opened: tuple[Folder, ...] = ()
        self.bundled: Folder | None = None
        self.target: Folder | None = None
        self.problem: CacheProblem | None = None
        self._warned = self._pruned = False

    def readable(self) -> tuple[Folder, ...]:
        if self.roots is None:
            self.roots = roots.candidates()
            try:
                self.bundled = folders.open_bundled()
                self.opened = (self.bundled,) if self.bundled else ()
            except Untrusted as error:
                self.warn(f"cannot use the kernels that came with kvarn: {error}")
            if not self.roots:
                self.problem = NO_HOME
            self._open_next(None)
            if self.target:
                host.keep(self.target.path.parent)
        return self.opened

    def key_of(self, folder: Folder) -> str:
        """The key that the checksums of a folder's files have in them."""
        return folders.bundled_key() if folder is self.bundled else folders.key()

    def tell_why_not_bundled(self) -> None:
        """Report why a kernel has to be compiled though the installation has kernels."""
        if self.bundled is None and (reason := folders.why_not_bundled()):
            self.warn(f"cannot use the kernels that came with kvarn, compiling others: {reason}")

    def write(self, name: str, payload: bytes) -> None:
        """Write a file to `target`; if that fails, to the next folder that can be written to."""
        self.readable()
        if self.problem:
            self._report(self.problem)
        while target := self.target:
            if not self._pruned:
                self._pruned = True
                folders.prune(target)
            try:
                return target.write(name, _digest(payload, folders.key(), name), payload)
            except Untrusted as error:
                problem = CacheProblem.of(error, target.path)
                return self.warn(f"cannot keep a compiled kernel: {problem}")
            except OSError as error:
                self._open_next(CacheProblem.of(error, target.path))
        return None

    def _open_next(self, problem: CacheProblem | None) -> None:
        """Open roots until one can be written to. Reports `problem`, or else an untrusted root."""
        assert self.roots is not None
        self.target = None
        while self.roots and self.target is None:
            root = self.roots.pop(0)
            try:
                folder = folders.open_kernels(root)
            except Untrusted as error:
                problem = problem or CacheProblem.of(error, root)
                continue
            except OSError as error:
                self.problem = self.problem or CacheProblem.of(error, root)
                continue
            self.opened += (folder,)
            if folder.is_writable():
                self.target = folder
            else:
                reason = f"{folder.path}: cannot be written to"
                self.problem = self.problem or CacheProblem(reason, CHOOSE_FOLDER)
        if problem:
            self._report(problem)

    def _report(self, problem: CacheProblem) -> None:
        instead = f"using {self.target.path}" if self.target else "compiling again in every process"
        self.warn(f"cannot keep compiled kernels, {instead}: {problem}")

    def warn(self, line: str) -> None:
        """Tell the user once per process; `kvarn doctor` tells the rest."""
        if not self._warned:
            self._warned = True
            say(line)


_folders = _Folders()


def _content(data: bytes, key: str, name: str) -> bytes:
    payload = data[_DIGEST:]
    if data[:_DIGEST] != _digest(payload, key, name):
        raise Damaged(f"{name}: its checksum does not match its content")
    return payload


def _digest(payload: bytes, key: str, name: str) -> bytes:
    state = hashlib.sha256(f"{key}/{name}\0".encode())
    state.update(payload)
    return state.digest()
