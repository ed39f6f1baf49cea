"""Many texts, each read into a pack of its own, by any number of processes and machines at once.

Locks are all that the processes share: a text that another one reads is left to it, and that of a
dead one goes on from its last commit. What became of each text is noted beside the packs
(`notes`); one of which processes die is given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ...system.errors import KvarnError, message_of
from ..documents import read_document
from ..documents.kinds import Notice
from ..packs import build_pack, index_pack
from ..store import Disk, PackBusy
from ..store.disk.contents import is_busy
from .notes import attempt

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


Text: TypeAlias = str | Sequence[int] | Callable[[], str] | TextFile
"""A text, the ids of one, or a function or file that is read when its turn comes."""
Begin: TypeAlias = "Callable[[Path, Context], Progress]"


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
    begin: Begin | None = None,
) -> Iterator[PackOutcome]:
    """Read each text into the pack whose folder is its key; yields what became of each as it ends.

    Any number of processes may do this at once with the same texts: what one of them reads, the
    others leave to it. A text that fails does not stop the others. What became of each is noted
    beside its pack, see `notes`.

    n_ctx, prefill: as in `build_pack`. attend: a method whose index the packs keep, see
    `index_pack`. kv_type: types of K and V. begin: called before a text is read, for the function
    that is told of its progress.
    """
    left = {Path(path): text for path, text in texts.items()}
    readings = {path: _Reading(path, begin) for path in left}
    while left:
        busy = {}
        for path, text in left.items():
            reading = readings[path]
            try:
                with attempt(path, _named(text)) as work:
                    if is_busy(path):  # before the text is read
                        raise PackBusy(path)
                    ids = text() if callable(text) else text
                    work.read(ids if isinstance(ids, str) else np.asarray(ids, "<u4").tobytes())
                    disk = Disk(path, *(kv_type or ()))
                    tell, opened = reading.tell, reading.opened
                    pack = build_pack(model, disk, ids, n_ctx, prefill, tell, opened)
                    if attend is not None and attend.selects:
                        pack = index_pack(model, path, attend, n_ctx)
            except PackBusy:
                busy[path] = text
            except KvarnError as error:
                yield PackOutcome(path, error, reading.n_read)
            else:
                yield PackOutcome(path, pack, reading.n_read)
        if len(busy) == len(left):
            time.sleep(_WAIT_SECONDS)
        left = busy


def _named(text: Text) -> str:
    return str(text.path) if isinstance(text, TextFile) else ""


class _Reading:
    """Counts the tokens of one text that this process reads, and passes their progress on."""

    def __init__(self, path: Path, begin: Begin | None) -> None:
        self._path, self._begin = path, begin
        self._progress: Progress | None = None
        self.n_read = 0

    def opened(self, context: Context) -> None:
        if self._begin is not None:
            self._progress = self._begin(self._path, context)

    def tell(self, done: int, total: int) -> None:
        self.n_read = done
        if self._progress is not None:
            self._progress(done, total)
