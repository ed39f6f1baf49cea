"""Writing a pack to one file."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from .....ops.attention.layout import SEGMENT
from .....system.files import new_file
from ....methods import Progress
from ..errors import PackError, checked_path
from ..folder import PackFolder, State, stride_of
from ..format import centre, checkpoints, log, manifest, states, superblock, tail
from ..format.log import KV, Place
from ..format.superblock import Tail
from ..planes.plane import read_slot


class _Stream(io.RawIOBase):
    """A file to read from, whose pieces are made when they are read."""

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

    Raises `PackError` if a segment is not as it was written, `FileRefused` if the target is not a
    regular file, OSError if writing fails.
    """
    checked_path(target)
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

    with (
        new_file(target) as part,
        part.open("r+b") as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, size, pieces in members:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = size, 0o644
            archive.addfile(entry, _Stream(pieces, moved))  # type: ignore[arg-type]


def _check_one_prefill(folder: PackFolder) -> None:
    """`PackError` if the parent's segments, which the copy holds too, were read in another way."""
    prefill, above = folder.manifest.prefill, folder.parent
    if above is not None:
        _check_one_prefill(above)
        if above.manifest.prefill != prefill:
            raise PackError(
                folder.path,
                f"its prompts were read {prefill or 'exact'}, those of its parent {above.path} "
                f"{above.manifest.prefill or 'exact'}, and one file records one of these: keep "
                "both folders",
            )


def _members(folder: PackFolder, state: State) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """(name, bytes, content) of each file of the copy."""
    _check_one_prefill(folder)
    facts = replace(folder.manifest, id=manifest.new_id(), parent=None)
    records, chain = log_of(state)
    rows, tokens = state.rows, state.tokens[state.n_full * SEGMENT :]
    tail_data, tail_chain = tail.encode(rows, tokens, state.n_full * SEGMENT, b"")
    place = Tail(1, len(tail_data), tail_chain.hex()) if tokens else Tail()
    named = state.commit.checkpoints
    commit = replace(
        state.commit,
        sequence=0,
        log_bytes=len(records),
        log_chain=chain.hex(),
        tail=place,
        checkpoints=tuple(replace(checkpoint, slot=i) for i, checkpoint in enumerate(named)),
        states=tuple(replace(one, slot=i) for i, one in enumerate(state.commit.states)),
        pins=(),
    )
    small = {
        manifest.NAME: facts.encode(),
        superblock.NAME: superblock.encode(commit, state.hidden),
        log.NAME: records,
        tail.file_name(1): tail_data,
    }
    if (means := folder.centre()) is not None:
        small[centre.NAME], _ = centre.encode(means)
    for name, data in small.items():
        yield name, len(data), iter((data,))
    if named:  # before the segments: a writer may use their slots again
        size = len(named) * folder.checkpoint_bytes
        yield checkpoints.NAME, size, map(folder.read_checkpoint, named)
    if state.commit.states:
        slots = state.commit.states
        size = len(slots) * facts.state_bytes
        copies = (states.read(folder, one, facts.state_bytes).tobytes() for one in slots)
        yield states.NAME, size, copies
    for plane, places in state.tables.places.items():
        if plane != KV and not places:
            continue  # a column that no record names
        n_bytes = folder.part_bytes(plane, state.tables.item_bytes.get(plane, 0))
        for number, name in enumerate(folder.names(plane)):
            yield name, len(places) * stride_of(n_bytes), _slots(places, plane, number, n_bytes)


def _slots(places: list[Place], plane: str, number: int, n_bytes: int) -> Iterator[bytes]:
    """The slots of one file, in the order of the segments."""
    for place in places:
        yield read_slot(place, plane, number, n_bytes).ljust(stride_of(n_bytes), b"\0")


def log_of(state: State) -> tuple[bytes, bytes]:
    """The log of a pack whose segments are in order, and its chain."""
    records, chain, tables = [], b"", state.tables
    for plane, places in tables.places.items():
        item_bytes = tables.item_bytes.get(plane, 0)
        for segment, place in enumerate(places):
            ids = state.tokens[segment * SEGMENT : (segment + 1) * SEGMENT]
            moved, data = replace(place, slot=segment), np.array(ids, "<u4").tobytes()
            record, chain = log.record(plane, segment, moved, data, item_bytes, chain)
            records.append(record)
    return b"".join(records), chain
