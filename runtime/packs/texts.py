"""Many texts, each read into a pack of its own, by any number of processes and machines at once.

Locks are all that the processes share: a text that another one reads is left to it, and that of a
dead one goes on from its last commit. What became of each text is noted beside the packs
(`notes`); one of which processes die is given up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from ...system.errors import KvarnError, message_of
from ..documents import read_document
from ..documents.kinds import Notice
from ..store import Disk, PackBusy, PackError
from ..store.disk.contents import is_busy
from ..store.disk.format.manifest import NAME as MANIFEST
from ..store.disk.info import pack_head
from .notes import attempt, digest_of, packs_by_digest
from .pack import build_pack, index_pack

if TYPE_CHECKING:
    from ..attend import Attend
    from ..context import Context, Progress
    from ..model import Model
    from ..prefill import Prefill
    from ..store.facts import PackInfo

_WAIT_SECONDS = 0.5
"""Between two looks at packs that other processes write."""


@dataclass(frozen=True)
class TextFile:
    """A document that is read when its turn comes; notice: see `read_document`."""

    path: Path
    notice: Notice = lambda line: None

    def __call__(self) -> str:
        try:
            return read_document(self.path, notice=self.notice)
        except OSError as error:
            raise KvarnError(message_of(error)) from error


Ids: TypeAlias = str | Sequence[int]
Text: TypeAlias = Ids | Callable[[], str] | TextFile
"""A text, the ids of one, or a function or file that is read when its turn comes."""
OnBegin: TypeAlias = "Callable[[Path, Context], Progress]"
OnOpen: TypeAlias = "Callable[[Context], None]"
N = TypeVar("N")
PacksByDigest: TypeAlias = dict[Path, dict[str, list[Path]]]
"""The packs of folders, by the digest of their texts."""


@dataclass(frozen=True)
class PackOutcome:
    """What became of one text.

    pack: the facts of its pack, or the error for which there is none. n_read: tokens that this
    process has read; the others were there, or another process has read them.
    """

    path: Path
    pack: PackInfo | KvarnError
    n_read: int


def build_packs(
    model: Model,
    texts: Mapping[str | Path, Text],
    n_ctx: int | None = None,
    prefill: Prefill | None = None,
    attend: Attend | None = None,
    kv_type: tuple[str, str] | None = None,
    begin: OnBegin | None = None,
    once: bool = False,
) -> Iterator[PackOutcome]:
    """Read each text into the pack whose folder is its key; yields what became of each as it ends.

    Any number of processes may do this at once with the same texts: what one of them reads, the
    others leave to it. A text that fails does not stop the others. What became of each is noted
    beside its pack, see `notes`. In a folder that cannot be written, packs are only looked for.

    n_ctx, prefill: as in `build_pack`. attend: a method whose index the packs keep, see
    `index_pack`. kv_type: types of K and V. begin: called before a text is read, for the function
    that is told of its progress. once: where another pack of the folder has the same text, that
    pack is the outcome.
    """
    left = {Path(path): text for path, text in texts.items()}
    readings = {path: ReadCounter(path, begin) for path in left}
    builder = _Builder(model, n_ctx, prefill, attend, kv_type)
    known: PacksByDigest = {}
    while left:
        busy = {}
        for path, text in left.items():
            reading = readings[path]
            try:
                if _is_read_only(path.parent):
                    pack = builder.find(path, _read(text), known if once else None)
                else:
                    with attempt(path, _named(text)) as work:
                        if is_busy(path):  # before the text is read
                            raise PackBusy(path)
                        ids = _read(text)
                        work.digest = digest_of(ids)
                        other = builder.find_other(path, ids, known) if once else None
                        pack = other or builder.build(path, ids, reading.report, reading.on_open)
                        work.is_elsewhere = other is not None
                        known.get(path.parent, {}).setdefault(work.digest, []).append(path)
            except PackBusy:
                busy[path] = text
            except KvarnError as error:
                yield PackOutcome(path, error, reading.n_read)
            else:
                yield PackOutcome(path, pack, reading.n_read)
        if len(busy) == len(left):
            time.sleep(_WAIT_SECONDS)
        left = busy


@dataclass(frozen=True)
class _Builder:
    """What all packs are built with, see `build_packs`."""

    model: Model
    n_ctx: int | None
    prefill: Prefill | None
    attend: Attend | None
    kv_type: tuple[str, str] | None

    def build(
        self, path: Path, ids: Ids, progress: Progress | None = None, opened: OnOpen | None = None
    ) -> PackInfo:
        """Read a text into its pack, and index that."""
        disk = Disk(path, *(self.kv_type or ()))
        pack = build_pack(self.model, disk, ids, self.n_ctx, self.prefill, progress, opened)
        if self.attend is not None and self.attend.selects:
            pack = index_pack(self.model, path, self.attend, self.n_ctx)
        return pack

    def finished(self, path: Path, ids: Ids) -> PackInfo:
        """The pack, if it holds all of the text. Raises `PackError`."""
        head, read_only = pack_head(path), _is_read_only(path.parent)
        if not head.n_tokens or not head.complete:
            why = ", and its folder cannot be written" if read_only else ""
            raise PackError(path, f"{head.n_tokens:,} of {head.goal:,} tokens are read{why}")
        if not read_only:
            return self.build(path, ids)
        return build_pack(self.model, Disk(path, read_only=True), ids, self.n_ctx)

    def find(self, path: Path, ids: Ids, known: PacksByDigest | None) -> PackInfo:
        """The pack of a text in a folder that cannot be written, or with `known` another one that
        holds all of it. Raises `KvarnError` without any."""
        if (path / MANIFEST).exists():
            return self.finished(path, ids)
        other = None if known is None else self.find_other(path, ids, known)
        if other is None:
            raise KvarnError(f"no pack holds this text, and {path.parent} cannot be written")
        return other

    def find_other(self, path: Path, ids: Ids, known: PacksByDigest) -> PackInfo | None:
        """One of other packs that holds all of the text, where there is no pack of it yet. known:
        folders whose notes were read. Raises `PackBusy` while another process writes to it."""
        if (path / MANIFEST).exists():
            return None
        if path.parent not in known:
            known[path.parent] = packs_by_digest(path.parent)
        for one in known[path.parent].get(digest_of(ids), ()):
            try:
                return self.finished(one, ids)
            except PackBusy:
                raise
            except PackError:  # of another model, read in another way, gone, or not finished
                continue
        return None


def _is_read_only(folder: Path) -> bool:
    return folder.is_dir() and not os.access(folder, os.W_OK)


def _read(text: Text) -> Ids:
    return text() if callable(text) else text


def _named(text: Text) -> str:
    return str(text.path) if isinstance(text, TextFile) else ""


class ReadCounter(Generic[N]):
    """Counts the tokens of one text, or a part of one, that this process reads, and passes their
    progress on. begin: called with the name and the context before it reads."""

    def __init__(self, name: N, begin: Callable[[N, Context], Progress] | None) -> None:
        self._name, self._begin = name, begin
        self._progress: Progress | None = None
        self.n_read = 0

    def on_open(self, context: Context) -> None:
        if self._begin is not None:
            self._progress = self._begin(self._name, context)

    def report(self, done: int, total: int) -> None:
        self.n_read = done
        if self._progress is not None:
            self._progress(done, total)
