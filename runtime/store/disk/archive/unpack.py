"""A strict reader of exported packs: it accepts only what export would write of the same pack.

No header is trusted: names, order and sizes follow from `pack.json` and the commit, which are read
first, and no size may exceed what is left of the file.
"""

from __future__ import annotations

import os
import re
import tarfile
from pathlib import Path

from .....ops.attention.layout import SEGMENT, n_segments
from ....methods import Progress
from .. import files
from ..errors import PackError
from ..folder import PackFolder, State, stride_of
from ..format import centre, checkpoints, log, manifest, states, superblock, tail
from ..format.checkpoints import newest_end
from ..format.log import KV, Place
from ..format.manifest import Manifest
from ..format.superblock import Commit
from .exporting import log_of

_BLOCK = tarfile.BLOCKSIZE
_PIECE = 1 << 20
_MOST_END = 2 * _BLOCK + tarfile.RECORDSIZE
_LARGE = re.compile(rb"([0-9]{1,3}) size=([1-9][0-9]{0,18})\n")


def unpack(fd: int, folder: Path, source: Path, progress: Progress | None) -> None:
    """Write the files of the archive, open as `fd`, to a new folder, and sync them.

    Raises `PackError` if export would not write this archive. Segments are not checked against
    their digests; `verify` does that.
    """
    archive = _Archive(fd, source, progress)
    try:
        _unpack(archive, folder)
    except PackError as error:
        if error.path == source:
            raise
        raise archive.error(error.reason) from error
    files.sync_folder(folder)


def _unpack(archive: _Archive, folder: Path) -> None:
    files.write_file(folder / manifest.NAME, archive.member(manifest.NAME, 1, manifest.MOST_BYTES))
    facts = Manifest.read(folder)
    if facts.parent is not None or facts.slots is not None:
        raise archive.error(f"its {manifest.NAME} is not that of a pack that stands alone")
    most = superblock.slot_bytes(facts.model.n_embd)
    data = archive.member(superblock.NAME, 1, most)
    files.write_file(folder / superblock.NAME, data)
    pack = PackFolder(folder)
    try:
        commit = _commit(archive, pack, data)
        _small_files(archive, pack, commit)
        pack.centre()
        state = pack.state()
        if log_of(state)[0] != files.read_file(folder / log.NAME, commit.log_bytes):
            raise archive.error(f"{log.NAME} is not in the order of the segments")
        _segments(archive, pack, state)
    finally:
        pack.close()
    archive.end()


def _commit(archive: _Archive, pack: PackFolder, data: bytes) -> Commit:
    """The only commit; the sizes it implies must fit in the archive."""
    decoded = superblock.decode(data, pack.manifest.model.n_embd)
    if decoded is None or superblock.encode(*decoded) != data or decoded[0].sequence:
        raise archive.error(f"{superblock.NAME} is damaged")
    commit, n_files = decoded[0], len(pack.names(KV))
    n_full, n_open = divmod(commit.n_tokens, SEGMENT)
    place = Place(pack, 0, (bytes(files.DIGEST),) * n_files)
    record, _ = log.record(KV, 0, place, bytes(4 * SEGMENT), 0, b"")
    column, _ = log.record("c" * 64, 0, Place(pack, 0, (bytes(files.DIGEST),)), b"", 1, b"")
    least = n_full * len(record)
    most = least + n_full * log.MOST_COLUMNS * len(column)
    tail_bytes = n_open * tail.record_bytes(pack.tail_row_bytes)
    slots = n_full * n_files * stride_of(pack.layer_bytes)
    slots += len(commit.checkpoints) * pack.checkpoint_bytes
    slots += len(commit.states) * pack.manifest.state_bytes
    if (
        not least <= commit.log_bytes <= most
        or (commit.tail.epoch, commit.tail.n_bytes) != (int(n_open > 0), tail_bytes)
        or slots + commit.log_bytes + tail_bytes > archive.left
    ):
        raise archive.error(f"its commit of {commit.n_tokens} tokens does not fit its size")
    _check_checkpoints(archive, pack, commit)
    _check_states(archive, pack, commit)
    return commit


def _check_checkpoints(archive: _Archive, pack: PackFolder, commit: Commit) -> None:
    """They are in order, and the last ones are among them."""
    n_full, segments = commit.n_tokens // SEGMENT, [c.segment for c in commit.checkpoints]
    n_before = n_segments(max(pack.manifest.windows, default=0))
    if (
        segments != sorted({s for s in segments if s < n_full})
        or [c.slot for c in commit.checkpoints] != list(range(len(segments)))
        or newest_end({*segments}, n_before, n_full) != n_full
        or (segments and not n_before)
    ):
        raise archive.error(f"its commit does not name the {checkpoints.NAME} that it needs")


def _check_states(archive: _Archive, pack: PackFolder, commit: Commit) -> None:
    """They are in order, in a pack that has some."""
    positions = [slot.n_tokens for slot in commit.states]
    if (
        positions != sorted({p for p in positions if p <= commit.n_tokens})
        or [slot.slot for slot in commit.states] != list(range(len(positions)))
        or (positions and not pack.manifest.state_bytes)
    ):
        raise archive.error(f"its commit names {states.NAME} that cannot be")


def _small_files(archive: _Archive, pack: PackFolder, commit: Commit) -> None:
    sizes = {log.NAME: commit.log_bytes, tail.file_name(1): commit.tail.n_bytes}
    if pack.manifest.centre:
        sizes[centre.NAME] = centre.n_bytes(pack.manifest)
    for name, size in sizes.items():
        files.write_file(pack.path / name, archive.member(name, size, size))
    slots = {
        checkpoints.NAME: len(commit.checkpoints) * pack.checkpoint_bytes,
        states.NAME: len(commit.states) * pack.manifest.state_bytes,
    }
    for name, size in slots.items():
        if not size:
            continue
        archive.header(name, size, size)
        with files.synced(pack.path / name) as fd:
            _copy(archive, fd, 0, size)
        archive.check_zeros(archive.take(-size % _BLOCK))


def _segments(archive: _Archive, pack: PackFolder, state: State) -> None:
    for plane, places in state.tables.places.items():
        n_bytes = pack.part_bytes(plane, state.tables.item_bytes.get(plane, 0))
        for name in pack.names(plane):
            size = len(places) * stride_of(n_bytes)
            archive.header(name, size, size)
            with files.synced(pack.path / name) as fd:
                for number in range(len(places)):
                    _slot(archive, fd, number * stride_of(n_bytes), n_bytes)


def _slot(archive: _Archive, fd: int, offset: int, n_bytes: int) -> None:
    """Copy one slot; its padding, which no digest covers, must be zeros."""
    _copy(archive, fd, offset, n_bytes)
    padding = archive.take(stride_of(n_bytes) - n_bytes)
    archive.check_zeros(padding)
    files.write_at(fd, padding, offset + n_bytes)


def _copy(archive: _Archive, fd: int, offset: int, n_bytes: int) -> None:
    for start in range(0, n_bytes, _PIECE):
        files.write_at(fd, archive.take(min(_PIECE, n_bytes - start)), offset + start)


class _Archive:
    """The bytes of a tar archive, read once from beginning to end."""

    def __init__(self, fd: int, source: Path, progress: Progress | None) -> None:
        self._fd, self._source, self._progress = fd, source, progress
        self._size, self._offset = os.fstat(fd).st_size, 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return self._size - self._offset

    def error(self, reason: str) -> PackError:
        """The error for an archive that is wrong for this reason."""
        return PackError(self._source, f"not an exported context pack: {reason}")

    def take(self, n: int) -> bytes:
        """The next `n` bytes."""
        data = files.read_at(self._fd, n, self._offset) if n <= self.left else b""
        if len(data) < n:
            raise self.error(f"it ends early, after {self._size:,} bytes")
        self._offset += n
        if self._progress is not None:
            self._progress(self._offset, self._size)
        return data

    def check_zeros(self, data: bytes) -> None:
        """`PackError` unless `data`, which was just read, is all zeros."""
        if data.count(0) != len(data):
            raise self.error(f"there are bytes that belong to nothing before byte {self._offset:,}")

    def member(self, name: str, low: int, high: int) -> bytes:
        """Name and content of the next member, which has `low` to `high` bytes."""
        n = self.header(name, low, high)
        data = self.take(n)
        self.check_zeros(self.take(-n % _BLOCK))
        return data

    def header(self, name: str, low: int, high: int) -> int:
        """Size of the next member, which must be `name` and have `low` to `high` bytes."""
        entry = self._entry()
        if entry.name != name:
            raise self.error(f"{entry.name!r:.80} is out of place in it: {name} was to follow")
        if not low <= entry.size <= min(high, self.left):
            raise self.error(
                f"{name} has {entry.size} bytes: {low} to {high} were to follow, and "
                f"{self.left} are left of it"
            )
        return entry.size

    def end(self) -> None:
        """`PackError` unless the archive ends here."""
        if self.left > _MOST_END or any(files.read_at(self._fd, _BLOCK, self._offset)):
            raise self.error(f"{self._entry().name!r:.80} is out of place in it: it was to end")
        if self.left < 2 * _BLOCK:
            raise self.error(f"it ends early, after {self._size:,} bytes")
        self.check_zeros(self.take(self.left))

    def _entry(self) -> tarfile.TarInfo:
        """The next header of a regular file, with the size that a pax header before it gives."""
        entry, size = self._parsed(), None
        if entry.type == tarfile.XHDTYPE:
            if not 0 < entry.size <= _BLOCK:
                raise self.error("it has a long pax header")
            block = self.take(_BLOCK)
            record, padding = block[: entry.size], block[entry.size :]
            match = _LARGE.fullmatch(record)
            if match is None or int(match[1]) != len(record) or any(padding):
                raise self.error("it has a pax header of something else than a size")
            entry, size = self._parsed(), int(match[2])
        if entry.type != tarfile.REGTYPE or entry.linkname or (size is not None and entry.size):
            raise self.error(f"{entry.name!r:.80} is no regular file in it")
        if size is not None:
            entry.size = size
        return entry

    def _parsed(self) -> tarfile.TarInfo:
        try:
            return tarfile.TarInfo.frombuf(self.take(_BLOCK), "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            at = self._offset - _BLOCK
            if not at:
                raise self.error(
                    "it begins with something else; `kvarn pack build -f FILE` makes a pack of a "
                    "text"
                ) from error
            raise self.error(f"there is no member at byte {at:,}: {error}") from error
