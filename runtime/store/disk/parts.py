"""Parts of a pack: runs of its segments that several processes write at once.

    NAME/               the pack, which has a commit of its first segments
    .NAME.parts/
      text              what they are parts of (`format.parts_text`)
      0000/ 0001/ …     the parts: each a pack without layer files

A part begins at a segment of the pack. It stores K and V in the slots of its segments in the pack's
own layer files, and keeps a log, a tail and commits for itself. So nothing is copied when the last
one is whole, but checkpoints: `join` logs the segments of all parts in the pack. Of the tokens
between the pack's and its own, a part has no K and V: their places are those of the first segment,
and nothing may read them but those of that segment itself; in layers with a window they are zeros.

While parts are written, each writer holds the pack's lock shared, so that no other may write it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....ops.arrays import U8
from ....ops.attention.layout import SEGMENT
from ....system.text import one_line
from ...home import make_folder
from ..base import Saved
from ..facts import PrefillFacts
from . import files
from .contents import LOCK, create
from .errors import PackBusy, PackDamaged, PackError, opening
from .factory import Disk
from .folder import PackFolder, State
from .format import centre, log
from .format.checkpoints import Checkpoint
from .format.log import KV, Place, Tables
from .format.manifest import NAME as MANIFEST
from .format.manifest import Parent, new_id
from .format.parts_text import TEXT, PartsText, parts_folder, parts_text
from .format.superblock import Commit
from .planes.plane import Plane
from .saving.checkpoints import Checkpoints
from .saving.writer import Writer
from .store import DiskStore

if TYPE_CHECKING:
    from ...loading.model_info import ModelInfo


def check_untouched(pack: Path, text: PartsText | None, commit: Commit) -> PartsText:
    """The text of the parts; `PackError` if the pack, which has that commit, has been written to
    since they were begun."""
    if text is None or text.n_segments != commit.n_tokens // SEGMENT:
        raise PackError(pack, "it was written to while its blocks were read: remove it")
    return text


def begin_parts(folder: PackFolder, digest: str) -> None:
    """Let a pack, which is open for writing and saved, be written in parts from its last full
    segment on. digest: of the text, all of it."""
    state = folder.state()
    if state.tables.next_slot.get(KV) != state.n_full:
        raise PackError(folder.path, "it was cut and cannot be read block by block: remove it")
    text = PartsText(folder.manifest.id, digest, state.n_full)
    remove_parts(folder.path)  # of a pack that had this name before
    make_folder(parts_folder(folder.path))
    files.replace(parts_folder(folder.path) / TEXT, json.dumps(asdict(text)).encode())


def remove_parts(pack: Path) -> None:
    """Remove what is known of the parts of a pack, but K and V. Raises `PackError` where that
    fails."""
    folder = parts_folder(pack)
    with opening(pack), suppress(FileNotFoundError):
        if folder.is_symlink():  # what it points to is not ours
            return folder.unlink()
        files.remove(folder / TEXT)  # first: without it, what may be left are no parts
        shutil.rmtree(folder)


@contextmanager
def sharing(pack: Path) -> Iterator[None]:
    """Hold the pack's lock together with others that write parts; `PackBusy` if one holds it
    alone."""
    with opening(pack):
        fd = files.open_file(pack / LOCK, writable=True)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PackBusy(pack) from error
        yield
    finally:
        os.close(fd)


class PartFolder(PackFolder):
    """A part of a pack, whose manifest names that as its parent, and the segment that it begins
    with as the number of segments it shares."""

    def __init__(self, path: Path, writable: bool = False) -> None:
        super().__init__(path, writable)
        if self.manifest.parent is None:
            raise PackDamaged(path, "it is no part of a pack: remove it")

    def _open_parent(self, depth: int) -> PackFolder:
        """The pack that it is a part of: no other, whatever the manifest names."""
        assert self.manifest.parent is not None
        named = self.manifest.parent.folder(self.path)
        if parts_folder(named) != self.path.resolve().parent:
            reason = f"it is no part of {one_line(str(named))}, which it names: remove it"
            raise PackDamaged(self.path, reason)
        return super()._open_parent(depth)

    @property
    def first(self) -> int:
        """The first segment of its own."""
        assert self.manifest.parent is not None
        return self.manifest.parent.n_segments

    def fd(self, name: str) -> int:
        if name not in self._fds and (name == centre.NAME or name in self.names(KV)):
            assert self.parent is not None
            self._fds[name] = files.open_file(self.parent.path / name, self.writable)
        return super().fd(name)

    def read_end(self, named: Mapping[int, Checkpoint], segment: int) -> bytes:
        """Of a segment before the part what the pack has, or zeros: no window reaches these."""
        if segment in named or segment >= self.first:
            return super().read_end(named, segment)
        assert self.parent is not None
        above = {c.segment: c for c in self.parent.last_commit().checkpoints}
        if segment in above:
            return self.parent.read_checkpoint(above[segment])
        return bytes(self.checkpoint_bytes)

    def _tables(self, log_bytes: int, chain: str) -> Tables:
        above, named = self.parent, self.manifest.parent
        assert above is not None and named is not None
        tables = above._tables(named.log_bytes, named.log_chain)
        tables.cut(self.first)
        n_before = self.first - len(tables.tokens)
        places = tables.places[KV] + [tables.places[KV][0]] * n_before
        tokens = tables.tokens + [tables.tokens[0]] * n_before
        tables = Tables({KV: places}, {}, tokens, {KV: self.first})
        data = memoryview(self.read(log.NAME, log_bytes))
        log.replay(data, bytes.fromhex(chain), tables, self, len(self.names(KV)))
        return tables

    def own(self, state: State) -> tuple[list[Place], list[int]]:
        """The places and token ids of the segments of its own in a state."""
        return state.tables.places[KV][self.first :], list(state.tokens[self.first * SEGMENT :])


@dataclass(frozen=True)
class Part(Disk):
    """K and V of tokens first … goal - 1 of a pack, both multiples of 1,024, in a part of it.

    n_apart: see `KVStore`. The pack is of the same model, read alike (`Disk.check`).
    """

    pack: Path = Path()
    first: int = 0
    n_apart: int = 0

    def for_prefill(self, facts: PrefillFacts | None) -> Part:
        return self

    def open(self, model: ModelInfo, n_ctx: int) -> DiskStore:
        path = Path(self.path)
        with opening(self.pack):
            if not (path / MANIFEST).exists():
                self._make(path)
            store = DiskStore(PartFolder(path, writable=True), self.io)
        store.n_apart, store.centre = self.n_apart, store.folder.centre()
        if store.is_fresh:  # a context need not know what comes before it
            unknown = np.zeros(store.folder.manifest.model.n_embd, np.float32)
            store.saved = replace(store.saved, hidden=unknown)
        return store

    def _make(self, path: Path) -> None:
        above = PackFolder(self.pack)
        commit = above.last_commit()
        place = f"../../{self.pack.name}"
        parent = Parent(
            place, above.manifest.id, self.first // SEGMENT, commit.log_bytes, commit.log_chain
        )
        create(path, replace(above.manifest, parent=parent, goal=self.goal, id=new_id()))


def join(pack: Path, parts: Sequence[Path], ids: Sequence[int]) -> None:
    """Make the segments of whole parts those of the pack, which goes on from the last of them.

    parts: in the order of their tokens. ids: of the text. Raises `PackBusy` while another process
    writes to the pack or a part, `PackError` if they are of another text, or do not follow each
    other.
    """
    with opening(pack), closing(PackFolder(pack, writable=True)) as folder:
        state, ends = folder.state(recent=True), dict[int, tuple[Path, Checkpoint]]()
        check_untouched(pack, parts_text(pack), state.commit)
        places = list(state.tables.places[KV])
        tokens, hidden = state.tokens.first(state.n_full * SEGMENT), state.hidden
        for path in parts:
            part = PartFolder(path)
            of_part = part.state()
            own, read = part.own(of_part)
            first = part.first * SEGMENT
            if first != len(tokens) or list(ids[first : first + len(read)]) != read:
                raise PackError(
                    pack, f"its part {one_line(path.name)} is of another text: remove it"
                )
            places += own
            known = of_part.commit.checkpoints
            ends.update({c.segment: (path, c) for c in known if c.segment >= part.first})
            tokens.extend(read)
            hidden = of_part.hidden
        saved = Saved(tokens, hidden, len(tokens), state.commit.n_apart)
        plane = Plane(KV, folder, state.tables.places[KV], 0, "mmap")
        writer = Writer(folder, state)
        writer.text_end = len(ids)

        def end_of(segment: int) -> U8 | None:
            if segment not in ends:
                return None
            path, checkpoint = ends[segment]
            return np.frombuffer(PartFolder(path).read_checkpoint(checkpoint), np.uint8)

        try:
            writer.take_over(
                plane, places[state.n_full :], saved, Checkpoints.of(folder, state), end_of
            )
        except OSError as error:
            raise PackError(pack, f"cannot be written: {error.strerror or error}") from error
