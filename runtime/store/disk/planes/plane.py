"""A plane: its first segments mapped from files, the rest in memory; kernels see addresses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import numpy as np

from .....ops.arrays import I64, U8
from .....ops.attention.layout import SEGMENT
from ...base import Column
from ...ram.anonymous import Pieces
from ..errors import PackDamaged
from ..folder import PackFolder, stride_of
from ..format.log import KV, Place
from .mapping import Mapping
from .shared import Piece, is_shared, shared_piece

Io = Literal["mmap", "pread"]
"""How full segments are read: mapped, or read into memory when the pack is opened.

Mapped segments are read when a kernel touches them, and stay in the page cache; if another program
truncates the file or the medium fails, SIGBUS ends the process. With "pread", a failure is a
`StoreError`, and each segment is checked against its digest.
"""


class _Slots:
    """The slots of one file, in one mapping with room to grow: a mapping for each new part of the
    file would soon be more than the system allows."""

    def __init__(self, folder: PackFolder, name: str, stride: int, writable_copy: bool) -> None:
        self._folder, self._name, self._stride = folder, name, stride
        # Columns are copy-on-write: writing an item again does not change the file.
        self._copy = writable_copy
        self._mapping: Mapping | None = None
        self._n_slots = self._room = 0

    def base(self, n_slots: int) -> int:
        """Address of slot 0, valid until the next call; `PackDamaged` unless the file has so many
        slots."""
        if n_slots > self._n_slots:
            fd, stride = self._folder.fd(self._name), self._stride
            stored = os.fstat(fd).st_size // stride
            if n_slots > stored:
                raise PackDamaged(
                    self._folder.path,
                    f"{self._name} is cut short: {stored} segments, expected at least {n_slots}",
                )
            self._n_slots = stored
            if stored > self._room:
                self._room = stored + stored // 4 + 1
                self._mapping = Mapping(fd, self._room * stride, self._copy)
        assert self._mapping is not None
        return self._mapping.address


class Plane:
    """The segments of K and V, or of one column, of all layers.

    `addresses[layer]` int64 (segments,): valid until the next `grow` or `reopen`. K and V of layers
    with a window are not in it, see `checkpoints`.
    """

    def __init__(
        self, name: str, folder: PackFolder, places: list[Place], item_bytes: int, io: Io
    ) -> None:
        model = folder.manifest.model
        self.name, self.places, self.item_bytes = name, places, item_bytes
        self.part_bytes = folder.part_bytes(name, item_bytes)
        self._n_files = len(folder.names(name))
        self._n_layers = self._n_files if name == KV else model.n_layers
        self._layer_bytes = self.segment_bytes // max(1, self._n_layers)
        self.io: Io = io
        self._mapped: dict[tuple[Path, str], _Slots] = {}
        # Segments in memory, by number: those after `places`, and with "pread" those before, too.
        self._memory: dict[int, tuple[memoryview, int]] = {}
        # Those of them that other contexts hold, too: they are read, and never written.
        self._shared: dict[int, Piece] = {}
        self._contents = f"another segment of {'KV cache' if name == KV else f'index {name}'}"
        self._pieces = Pieces(max(1, self.segment_bytes), self._contents)  # of no layer: no bytes
        self.n_segments = len(places)
        self.addresses: list[I64] = []
        if io == "pread":
            self.hold()
        else:
            self._table()

    def hold(self) -> None:
        """Read all segments into memory, to stay there, but those that another context holds;
        `PackDamaged` if one is not as written."""
        self.io = "pread"
        self._check_files()
        # Not of those for its own segments: a mapping is freed with the last of its pieces.
        pieces = Pieces(max(1, self.segment_bytes), self._contents)
        for segment in range(len(self.places)):
            if segment not in self._memory:
                self._share(segment, pieces)
        self._table()

    def _check_files(self) -> None:
        """`PackDamaged` if a file ends before its last segment: those that other contexts hold are
        not read again."""
        last = {place.folder: place.slot for place in sorted(self.places, key=lambda it: it.slot)}
        for folder, slot in last.items():
            for name in folder.names(self.name):
                stop = slot * stride_of(self.part_bytes) + self.part_bytes
                if os.fstat(folder.fd(name)).st_size < stop:
                    raise PackDamaged(folder.path, f"{name} is cut short in slot {slot}")

    @property
    def bytes_to_hold(self) -> int:
        """Bytes that `hold` reads."""
        n = sum(not is_shared(place, self.name, self.part_bytes) for place in self.places)
        return n * self.segment_bytes

    def _share(self, segment: int, pieces: Pieces) -> None:
        def read() -> tuple[memoryview, int]:
            return self._read(segment, pieces.take(len(self.places) - segment))

        piece = shared_piece(self.places[segment], self.name, self.part_bytes, read)
        self._shared[segment] = piece
        self._memory[segment] = piece.memory, piece.address

    @property
    def segment_bytes(self) -> int:
        """Bytes of a segment in all files."""
        return self.part_bytes * self._n_files

    @property
    def memory_bytes(self) -> int:
        """Bytes of segments held in memory."""
        return len(self._memory) * self.segment_bytes

    def grow(self, n_segments: int) -> None:
        """Grow to at least `n_segments` segments; map those sealed since, and free their memory."""
        changed = self._release()
        for segment in range(self.n_segments, n_segments):
            self._memory[segment] = self._fresh()
            self.n_segments, changed = segment + 1, True
        if changed:
            self._table()

    def reopen(self, segment: int, n_segments: int) -> None:
        """Move `segment` to memory, to be written again, and drop later ones; then grow again."""
        if segment not in self._memory:
            self._memory[segment] = self._read(segment, self._fresh())
        elif segment in self._shared:
            self._memory[segment] = self._copied(segment)
        self._drop(segment + 1)
        del self.places[segment:]
        self._shared.pop(segment, None)
        self.n_segments = segment + 1
        self._table()
        self.grow(n_segments)

    def restart(self, first: int) -> None:
        """Replace the segments from `first` on by empty ones in memory, which are written again."""
        n_segments, self.n_segments = self.n_segments, min(first, self.n_segments)
        del self.places[first:]
        self._drop(first)
        self.grow(n_segments)

    def _drop(self, first: int) -> None:
        """Let go of the segments in memory from `first` on."""
        for segment in [n for n in self._memory if n >= first]:
            del self._memory[segment]
            self._shared.pop(segment, None)

    def _copied(self, segment: int) -> tuple[memoryview, int]:
        """Memory of its own with the bytes of a shared segment."""
        fresh = self._fresh()
        np.frombuffer(fresh[0], np.uint8)[: self.segment_bytes] = self.buffer(segment)
        return fresh

    def buffer(self, segment: int) -> U8:
        """All bytes of a segment in memory, file after file; of a shared one, to read."""
        return np.frombuffer(self._memory[segment][0], np.uint8)[: self.segment_bytes]

    def seal(self, segment: int, slot: int, folder: PackFolder) -> Place:
        """Write a segment from memory to its slot in the files, which are not synced.

        It is read from there once the place is in `places`.
        """
        parts = self.buffer(segment).reshape(self._n_files, self.part_bytes)
        stride = stride_of(self.part_bytes)
        named = zip(folder.names(self.name), parts, strict=True)
        digests = [folder.write_slot(name, slot, part.data, stride) for name, part in named]
        return Place(folder, slot, tuple(digests))

    def _release(self) -> bool:
        """Free the memory of segments that the files have; returns whether there were any."""
        sealed = [n for n in self._memory if n < len(self.places)] if self.io == "mmap" else []
        for segment in sealed:
            del self._memory[segment]
        return bool(sealed)

    def _fresh(self) -> tuple[memoryview, int]:
        return self._pieces.take(len(self._memory))

    def _table(self) -> None:
        table = np.empty((self._n_layers, self.n_segments), np.int64)
        offsets = self._layer_bytes * np.arange(self._n_layers)
        in_files: dict[Path, list[int]] = {}
        for segment in range(self.n_segments):
            if segment in self._memory:
                table[:, segment] = self._memory[segment][1] + offsets
            else:
                in_files.setdefault(self.places[segment].folder.path, []).append(segment)
        for segments in in_files.values():
            table[:, segments] = self._file_addresses([self.places[n] for n in segments])
        self.addresses = list(table)

    def _file_addresses(self, places: list[Place]) -> I64:
        """Addresses (layers, places) of segments in the files of one folder."""
        folder, slots = places[0].folder, np.array([place.slot for place in places])
        n_slots, stride = int(slots.max()) + 1, stride_of(self.part_bytes)
        bases = [self._file(folder, name).base(n_slots) for name in folder.names(self.name)]
        within = self._layer_bytes * np.arange(1 if self.name == KV else self._n_layers)
        layers = np.add.outer(np.array(bases, np.int64), within).ravel()
        addresses: I64 = np.add.outer(layers, slots * stride)
        return addresses

    def _file(self, folder: PackFolder, name: str) -> _Slots:
        key = folder.path, name
        if key not in self._mapped:
            copy = self.name != KV
            self._mapped[key] = _Slots(folder, name, stride_of(self.part_bytes), copy)
        return self._mapped[key]

    def _read(self, segment: int, fresh: tuple[memoryview, int]) -> tuple[memoryview, int]:
        """Fresh memory with the bytes of a full segment, checked against its digests."""
        parts = np.frombuffer(fresh[0], np.uint8)[: self.segment_bytes]
        for file, part in enumerate(parts.reshape(self._n_files, self.part_bytes)):
            data = read_slot(self.places[segment], self.name, file, self.part_bytes)
            part[:] = np.frombuffer(data, np.uint8)
        return fresh


class DiskColumn(Column):
    """A column of a pack: full segments are saved, items of the open segment are not.

    They can be computed from K as stored: after opening, `filled` says which items there are.
    """

    def __init__(self, item_bytes: int, plane: Plane, n_layers: int) -> None:
        self.item_bytes, self.plane = item_bytes, plane
        self.filled = np.full(n_layers, len(plane.places) * SEGMENT, np.int64)

    def segments(self, layer: int) -> I64:
        return self.plane.addresses[layer]

    def restart(self, first: int = 0) -> None:
        self.plane.restart(first // SEGMENT)
        super().restart(first)


def read_slot(place: Place, plane: str, file: int, n_bytes: int) -> bytes:
    """The bytes of a full segment in one file; `PackDamaged` if they are not as written."""
    name, digest = place.folder.names(plane)[file], place.digests[file]
    return place.folder.read_slot(name, place.slot, n_bytes, digest, stride_of(n_bytes))
