"""The KV cache of a pack: full segments in files, the open one in memory and in the tail log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

import numpy as np

from ....ops.arrays import F32
from ....ops.attention.layout import SEGMENT, n_segments
from ...memory import available_bytes
from ..base import Allow, Column, Saved, StoreError
from ..facts import ProbeSums
from ..host import HostStore
from ..states import States
from . import files
from .checking.verify import check
from .errors import PackError
from .folder import PackFolder, State
from .format import checkpoints
from .format import states as saved_states
from .format.log import COLUMN_NAME, KV, MOST_COLUMNS, MOST_ITEM_BYTES, Place, Tables
from .parents import segment_bytes
from .planes.plane import DiskColumn, Io, Plane
from .saving.checkpoints import Checkpoints
from .saving.states import SavedStates
from .saving.writer import Writer

WORTH_COPYING = 32 << 20
"""Bytes of a column. Of smaller ones, a core's own address tables find nearly all pages."""
COPIED = 8 * SEGMENT
"""Tokens that are copied from one pack to another between two commits."""
ROOM_LEFT = 1 << 30
"""Bytes of memory that stay free of copies, beside K and V, which the system keeps in memory."""


class DiskStore(HostStore[DiskColumn]):
    """K and V of a pack, and what is appended after them: of layers with a window, those that can
    still be read are in memory.

    With a writer, `commit` saves tokens. Without one, the pack is only read and new tokens stay in
    memory; any number of such stores can use one pack, also while a writer works.
    """

    def __init__(self, folder: PackFolder, io: Io = "mmap", states: States | None = None) -> None:
        model = folder.manifest.model
        self.layout, self.n_layers = folder.layout, model.n_layers
        self.n_kv_heads = model.n_kv_heads
        self.folder, self._io = folder, io
        state = folder.state(recent=True)
        self.is_fresh = not state.commit.sequence
        """Whether nothing has been saved since the pack was made."""
        self._tables: Tables = state.tables
        self._kv = Plane(KV, folder, state.tables.places[KV], 0, io)
        self._checkpoints = checkpoints = Checkpoints.of(folder, state)
        super().__init__(None if checkpoints is None else checkpoints.windowed, len(state.tokens))
        self.states = states
        self._states = None if states is None else SavedStates(folder, states, state)
        self._place()
        self.saved, self.n_apart = state.saved, state.saved.n_apart
        self._begin(state)
        self._writer = Writer(folder, state) if folder.writable else None
        self._probe = dict(state.commit.probe)
        self._allow: Allow | None = None
        for name, item_bytes in state.tables.item_bytes.items():
            self._column(name, item_bytes)

    def adopt(self, parent: PackFolder, state: State | None = None, *, late: bool = False) -> None:
        """Copy to a new pack the tokens of a state of `parent` (None: the last one) after the full
        segments that both share, and the states after them, and commit.

        late: the tokens of the open segment are saved by the next commit; until then, the parent
        alone has them on disk."""
        state = state or parent.state()
        n_shared = len(self._kv.places)
        for segment in range(n_shared, state.n_full):
            self._copy(segment, parent, state)
        self.saved = saved = state.saved
        self._begin(state)
        if self._states is not None:
            self._states.inherit(parent, saved.tokens)
            self._states.states.pin(self._states.go_back(len(saved.tokens)))
        if state.n_full > n_shared or not late:
            self.commit(saved.tokens, saved.hidden, saved.n_prompt)

    def _copy(self, segment: int, parent: PackFolder, state: State) -> None:
        """Copy a full segment of a state of `parent`; commit at times, so that few are in
        memory."""
        n_tokens = (segment + 1) * SEGMENT
        self.reserve(n_tokens)
        for name, item_bytes in {KV: 0, **state.tables.item_bytes}.items():
            if segment < len(state.tables.places[name]):
                plane = self._kv if name == KV else self._column(name, item_bytes).plane
                data = segment_bytes(parent, state, name, segment)
                plane.buffer(segment)[:] = np.frombuffer(data, np.uint8)
                if name != KV and (filled := self.columns[name].filled)[0] == n_tokens - SEGMENT:
                    filled[:] = n_tokens
        if n_tokens % COPIED == 0:
            self.commit(state.tokens.first(n_tokens), None, min(state.commit.n_prompt, n_tokens))

    def _begin(self, state: State) -> None:
        """Hold the tokens after a state's full segments."""
        self._start = len(state.tokens)
        self.reserve(len(state.tokens))
        self.pin(len(state.tokens))
        if len(state.rows):
            n_bytes = self.folder.rows.n_bytes
            self.folder.rows.scatter(state.rows[:, :n_bytes], self._kv.buffer(state.n_full))
            if self.windowed is not None:
                self.windowed.put(state.n_full * SEGMENT, state.rows[:, n_bytes:])

    @property
    def n_mapped(self) -> int:
        return len(self._kv.places) if self._io == "mmap" else 0

    @property
    def tells_pages(self) -> bool:
        """Asked anew each time: a file's owner can change."""
        folders = {place.folder.path: place.folder for place in self._kv.places}
        first = [path / name for path, pack in folders.items() for name in pack.names(KV)[:1]]
        return all(map(files.tells_pages, first))

    @property
    def saves(self) -> bool:
        return self._writer is not None

    def reserve(self, n_tokens: int) -> None:
        self._reserved = max(self._reserved, n_tokens)
        wanted = n_segments(self._reserved)
        for plane in self._planes():
            plane.grow(wanted)
        moved = self.windowed is not None and self.windowed.advance(self._start, n_tokens)
        if moved or self._kv.addresses is not self._whole:
            self._place()

    def _place(self) -> None:
        self._place_segments(self._kv.addresses, self._kv.n_segments)

    def _go_back(self, n_tokens: int) -> int:
        assert self._checkpoints is not None
        return self._checkpoints.go_back(n_tokens)

    def _restore_states(self, states: States, n_tokens: int) -> int:
        assert self._states is not None
        return self._states.go_back(n_tokens)

    def append(self, layer: int, k: F32, v: F32, start: int) -> None:
        self._cut(int(start))
        super().append(layer, k, v, start)

    def column(self, name: str, item_bytes: int) -> Column:
        column = self._column(name, item_bytes)
        self._hold(column.plane)
        return column

    def _column(self, name: str, item_bytes: int) -> DiskColumn:
        if not COLUMN_NAME.fullmatch(name) or not 0 < item_bytes <= MOST_ITEM_BYTES:
            raise StoreError(f"index {name!r} of {item_bytes} bytes per token cannot be stored")
        stored = self._tables.item_bytes.get(name, item_bytes)
        if stored != item_bytes:
            raise StoreError(f"index {name} holds {stored} bytes per token, expected {item_bytes}")
        if name not in self.columns:
            if len(self._tables.places) > MOST_COLUMNS and name not in self._tables.places:
                raise StoreError(
                    f"{self.folder.path} has {MOST_COLUMNS} indexes: make another pack"
                )
            self._tables.item_bytes[name] = item_bytes
            places = self._tables.places.setdefault(name, [])
            plane = Plane(name, self.folder, places, item_bytes, self._io)
            plane.grow(n_segments(self._reserved))
            self.columns[name] = DiskColumn(item_bytes, plane, self.n_layers)
        return self.columns[name]

    def _hold(self, plane: Plane) -> None:
        """Copy the mapped segments of a column in use to memory, if there is room beside K and V:
        once for all contexts that read them.

        All of it is read for each token, from a file in pages of 4 KB
        (docs/internals/performance.md).
        """
        n_bytes = len(plane.places) * plane.segment_bytes
        if plane.io == "mmap" and n_bytes >= WORTH_COPYING:
            beside = len(self._kv.places) * self._kv.segment_bytes + ROOM_LEFT
            if available_bytes() >= plane.bytes_to_hold + beside:
                plane.hold()
                self.copied_bytes += n_bytes

    @property
    def unsaved_index_bytes(self) -> int:
        if self.saves:
            return 0
        made, n_saved = 0, len(self._kv.places)
        for column in self.columns.values():
            n_made = min(int(column.filled.min()) // SEGMENT, n_saved) - len(column.plane.places)
            made += max(0, n_made) * column.plane.segment_bytes
        return made

    def saved_items(self, name: str) -> int:
        return SEGMENT * len(self._tables.places.get(name, ()))

    @property
    def places(self) -> Mapping[str, Sequence[Place]]:
        """Where the full segments of K and V (`log.KV`) and of columns are in files."""
        return self._tables.places

    @property
    def free_bytes(self) -> int:
        return shutil.disk_usage(self.folder.path).free if self.saves else super().free_bytes

    @property
    def n_bytes(self) -> int:
        """Bytes held: the full segments in files, and what is in memory."""
        names = {
            name
            for plane in self._planes()
            if plane.places and plane.places[-1].folder is self.folder
            for name in self.folder.names(plane.name)
        }
        n_bytes = sum(plane.memory_bytes for plane in self._planes())
        if self._checkpoints is not None:
            n_bytes += self._checkpoints.windowed.n_bytes
            names |= {checkpoints.NAME} if self._checkpoints.named else set()
        if self._states is not None:
            n_bytes += self._states.states.n_bytes
            names |= {saved_states.NAME} if self._states.named else set()
        return n_bytes + sum(os.fstat(self.folder.fd(name)).st_size for name in names)

    def commit(self, tokens: Sequence[int], hidden: F32 | None, n_prompt: int = 0) -> None:
        if self._writer is None:
            return
        self.cut(len(tokens))
        kept_apart = self._checkpoints, self._states
        if self._allow is not None:
            self._allow(self._writer.most_growth(len(tokens), self._planes(), *kept_apart))
        columns = [(column.plane, int(column.filled.min())) for column in self.columns.values()]
        try:
            state = Saved(tokens, hidden, n_prompt, self.n_apart)
            self._writer.commit(state, self._probe, self._kv, columns, *kept_apart)
        except OSError as error:
            raise PackError(
                self.folder.path,
                f"cannot be written: {error.strerror or error}; it keeps its last commit, of "
                f"{self._writer.n_tokens:,} tokens",
            ) from error

    def limit_saves(self, allow: Allow) -> None:
        self._allow = allow

    @property
    def written_bytes(self) -> int:
        return self.folder.n_written

    def end_text(self, n_tokens: int) -> None:
        super().end_text(n_tokens)
        if self._writer is not None:
            self._writer.text_end = n_tokens

    def add_probes(self, measured: Mapping[int, ProbeSums]) -> None:
        for layer, sums in measured.items():
            self._probe[layer] = self._probe.get(layer, ProbeSums()) + sums

    def check_saved(self) -> None:
        check(self.folder.path)

    def close(self) -> None:
        self.folder.close()

    def _planes(self) -> list[Plane]:
        return [self._kv, *(column.plane for column in self.columns.values())]

    def _cut(self, start: int) -> None:
        """Bring their segment back to memory if it is in files, to be written again."""
        if self._writer is not None:
            self._writer.cut(start)
        for kept_apart in (self._checkpoints, self._states):
            if kept_apart is not None:
                kept_apart.cut(start)
        if start >= len(self._kv.places) * SEGMENT:
            return
        segment, n_wanted = start // SEGMENT, n_segments(self._reserved)
        for column in self.columns.values():
            if segment < len(column.plane.places):
                column.plane.reopen(segment, n_wanted)
            np.minimum(column.filled, start, out=column.filled)
        self._kv.reopen(segment, n_wanted)
        for places in self._tables.places.values():  # of dropped columns, too
            del places[segment:]
        self._place()
