"""A pack as one file: a tar archive, uncompressed, with `pack.json` in front.

What is exported stands alone and without gaps: segments of parents are copied in, those that no
commit needs any more are left out, and every segment is held against its digest on the way.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ....ops.attention.layout import SEGMENT
from . import files
from .errors import PackError
from .folder import PackFolder, State, stride_of, take_lock
from .format import centre, log, manifest, superblock, tail
from .format.log import KV, Place
from .format.manifest import Manifest
from .format.superblock import Commit, Tail
from .plane import read_slot
from .verify import verify

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

_NAMES = re.compile(
    rf"centre|commits|tokens|tail-1|layer-\d{{3}}\.kv|index-{log.COLUMN_NAME.pattern}"
)
_BLOCK = 1 << 20
_IMPORTING = ".importing-"


class _Stream(io.RawIOBase):
    """A file to read from, of pieces that are made as they are asked for."""

    def __init__(self, pieces: Iterator[bytes], moved: Callable[[int], None]) -> None:
        self._pieces, self._rest, self._moved = pieces, b"", moved

    def read(self, n: int = -1) -> bytes:
        while n > len(self._rest) and (piece := next(self._pieces, None)) is not None:
            self._rest += piece
        part, self._rest = self._rest[:n], self._rest[n:]
        self._moved(len(part))
        return part


def export_pack(path: Path, target: Path, progress: Progress | None = None) -> None:
    """Write the last commit of a pack to the file `target`, whole or not at all.

    Raises `PackError` where a segment is not as it was written, OSError where writing fails.
    """
    folder = PackFolder(path)
    if folder.manifest.slots is not None:
        raise PackError(path, "it evicts tokens, which only its own folder holds: copy that")
    members = list(_members(folder, folder.state()))
    total, done = sum(size for _, size, _ in members), 0

    def moved(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(done, total)

    aside = target.with_name(target.name + ".part")
    try:
        with aside.open("wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for name, size, pieces in members:
                    entry = tarfile.TarInfo(name)
                    entry.size, entry.mode = size, 0o644
                    archive.addfile(entry, _Stream(pieces, moved))  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def _members(folder: PackFolder, state: State) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """(name, bytes, content) of each file of the copy."""
    facts = replace(folder.manifest, id=Manifest.new_id(), parent=None)
    records, chain = _log(state)
    rows, tokens = state.rows, state.tokens[state.n_full * SEGMENT :]
    tail_data, tail_chain = tail.encode(rows, tokens, state.n_full * SEGMENT, b"")
    place = Tail(1, len(tail_data), tail_chain.hex()) if tokens else Tail()
    commit = Commit(0, len(state.tokens), len(records), chain.hex(), place)
    small = {
        manifest.NAME: facts.encode(),
        superblock.NAME: superblock.encode(commit, state.hidden),
        log.NAME: records,
        tail.file_name(1): tail_data,
    }
    if (taken_off := folder.centre()) is not None:
        small[centre.NAME], _ = centre.encode(taken_off)
    for name, data in small.items():
        yield name, len(data), iter((data,))
    for plane, places in state.tables.places.items():
        n_bytes = folder.part_bytes(plane, state.tables.item_bytes.get(plane, 0))
        for number, name in enumerate(folder.names(plane)):
            yield name, len(places) * stride_of(n_bytes), _slots(places, plane, number, n_bytes)


def _slots(places: list[Place], plane: str, number: int, n_bytes: int) -> Iterator[bytes]:
    """The slots of one file, in the order of the segments."""
    for place in places:
        yield read_slot(place, plane, number, n_bytes).ljust(stride_of(n_bytes), b"\0")


def _log(state: State) -> tuple[bytes, bytes]:
    """The log of a pack whose segments lie in order, and its chain."""
    parts, chain = [], b""
    for plane, places in state.tables.places.items():
        for segment, place in enumerate(places):
            if plane == KV:
                record = log.kv_record(
                    segment, segment, state.tables.tokens[segment], place.digests
                )
            else:
                record = log.column_record(
                    segment, segment, state.tables.item_bytes[plane], place.digests[0], plane
                )
            part, chain = log.chained(record, chain)
            parts.append(part)
    return b"".join(parts), chain


def import_pack(source: Path, path: Path, progress: Progress | None = None) -> None:
    """Make the pack `path` of an exported file; every byte is verified before it gets its name.

    Raises `PackError` where the file is none or is damaged, or `path` exists already.
    """
    if path.exists():
        raise PackError(path, "it exists already: remove it first, or choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_imports(path.parent)
    aside, lock = _make_aside(path.parent)
    try:
        try:
            with tarfile.open(source, "r:") as archive:
                _unpack(archive, aside, source, progress)
        except (tarfile.TarError, EOFError) as error:
            raise PackError(source, f"not an exported context pack: {error}") from error
        if damage := verify(aside):
            raise PackError(source, f"it is damaged: {damage[0]}")
        aside.chmod(0o777 & ~_umask())
        aside.rename(path)
        files.sync_folder(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        os.close(lock)


def clear_imports(folder: Path) -> None:
    """Remove what imports of processes that are no more have left in a folder of packs."""
    for path in folder.glob(_IMPORTING + "*"):
        try:
            lock = take_lock(path)
        except (PackError, OSError):
            continue  # at work, done in between, or not ours to remove
        try:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


def _make_aside(parent: Path) -> tuple[Path, int]:
    """A new folder, and the descriptor of the lock that says that this process works in it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_IMPORTING, dir=parent))
        with suppress(PackError, FileNotFoundError):  # `clear_imports` was faster
            lock = take_lock(path)
            if os.fstat(lock).st_nlink:
                return path, lock
            os.close(lock)


def _unpack(
    archive: tarfile.TarFile, folder: Path, source: Path, progress: Progress | None
) -> None:
    total = source.stat().st_size
    for number, entry in enumerate(archive):
        fits = entry.name == manifest.NAME if number == 0 else _NAMES.fullmatch(entry.name)
        content = archive.extractfile(entry) if entry.isreg() and fits else None
        if content is None or (folder / entry.name).exists():
            raise PackError(
                source, f"not an exported context pack: {entry.name!r:.80} is out of place in it"
            )
        fd = files.open_file(folder / entry.name, writable=True)
        try:
            offset = 0
            while data := content.read(_BLOCK):
                files.write_at(fd, data, offset)
                offset += len(data)
                if progress is not None:
                    progress(entry.offset_data + offset, total)
            files.sync(fd)
        finally:
            os.close(fd)
    files.sync_folder(folder)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
