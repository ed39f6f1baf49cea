"""The only writer of a pack: what a commit writes to disk, in which order.

    1. full segments into fresh slots of the layer and index files, the last tokens of some in
       layers with a window into free slots of the checkpoints, copies of states into free slots of
       theirs, each synced
    2. their records into the log, synced
    3. the open segment's new tokens into the tail log, synced
    4. a superblock into the slot of the commit before the last, synced

Nothing that either superblock names is overwritten, so the state of each stays whole, whatever
happens in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from .....ops.arrays import F32, U8
from .....ops.attention.layout import SEGMENT
from ...base import Saved
from ...facts import ProbeSums
from .. import files
from ..errors import PackError
from ..folder import PackFolder, State, stride_of
from ..format import log, superblock, tail
from ..format.checkpoints import Checkpoint
from ..format.log import Place
from ..format.states import StateSlot
from ..format.superblock import Commit, Pin, Tail
from ..planes.plane import Plane
from .checkpoints import Checkpoints
from .states import SavedStates

_MOST_PINS = 4
_MOST_RECORDS = 4 * SEGMENT  # in a tail file, of which at most 1,024 are valid

_BLOCK = 4096  # bytes to which the end of a file is rounded up on disk

Columns = Sequence[tuple[Plane, int]]
"""The plane of each column, and how many tokens all layers have written."""


class Writer:
    """Commits states of one pack, starting with the state that the pack was opened with."""

    def __init__(self, folder: PackFolder, state: State) -> None:
        self._folder = folder
        self._commit = self._other = state.commit
        self._next_slot = dict(state.tables.next_slot)
        # The segment whose tokens, up to `_tail_end`, the tail file holds.
        self._tail_segment = state.n_full if len(state.rows) else -1
        self._tail_end = state.commit.n_tokens
        self._valid = state.commit.n_tokens
        self._failed = False
        self._pins = list(state.commit.pins)
        self.text_end = -1
        """After how many tokens a text ends; a commit of just these tokens pins the place."""
        self._recover()

    @property
    def n_tokens(self) -> int:
        """Tokens of the last commit."""
        return self._commit.n_tokens

    def cut(self, start: int) -> None:
        """The tokens from `start` on are not valid any more on disk."""
        self._valid = min(self._valid, start)
        self._tail_end = min(self._tail_end, start)
        self._pins = [pin for pin in self._pins if pin.n_tokens <= start]

    def commit(
        self,
        state: Saved,
        probe: Mapping[int, ProbeSums],
        kv: Plane,
        columns: Columns,
        checkpoints: Checkpoints | None,
        states: SavedStates | None,
    ) -> None:
        """Make tokens and their K and V the pack's state. An OSError ends all commits.

        checkpoints, states: of the layers that have a window, and that carry a state, if there are
        any.
        """
        tokens = state.tokens
        if self._failed:
            raise PackError(
                self._folder.path, "writing to it has failed before: open it again to go on"
            )
        nothing_new = self._valid == len(tokens) == self.n_tokens
        if nothing_new and not (_full(tokens, kv, columns) or (states and states.unsaved)):
            return
        self._failed = True
        sealed = [self._write(plane, segment) for plane, segment in _full(tokens, kv, columns)]
        log_bytes, log_chain = self._append_log(tokens, sealed)
        named = self._write_checkpoints(checkpoints, len(tokens) // SEGMENT)
        state_slots: tuple[StateSlot, ...] = ()
        if states is not None:
            taken = {s.slot for old in (self._commit, self._other) for s in old.states}
            state_slots = states.write(tokens, taken)
        commit = replace(
            self._commit,
            sequence=self._commit.sequence + 1,
            n_tokens=len(tokens),
            log_bytes=log_bytes,
            log_chain=log_chain,
            tail=(place := self._append_tail(tokens, kv, checkpoints)),
            pins=self._pinned(place, len(tokens)) if checkpoints is not None else (),
            n_prompt=state.n_prompt,
            n_apart=state.n_apart,
            probe=dict(probe),
            checkpoints=named,
            states=state_slots,
        )
        self._put(commit, state.hidden)
        if checkpoints is not None:
            checkpoints.keep(named)
        if states is not None:
            states.keep(state_slots)
        for plane, _, written in sealed:
            plane.places.append(written)
        self._failed = False

    def take_over(
        self,
        kv: Plane,
        places: Sequence[Place],
        state: Saved,
        checkpoints: Checkpoints | None,
        end_of: Callable[[int], U8 | None],
    ) -> None:
        """Make full segments that others have put into the pack's files, after those of the last
        commit, its state, without a tail. For packs whose layers have no states. checkpoints,
        end_of: see `Checkpoints.write`."""
        sealed = [(kv, len(kv.places) + i, place) for i, place in enumerate(places)]
        log_bytes, log_chain = self._append_log(state.tokens, sealed)
        commit = replace(
            self._commit,
            sequence=self._commit.sequence + 1,
            n_tokens=len(state.tokens),
            log_bytes=log_bytes,
            log_chain=log_chain,
            tail=Tail(),
            pins=self._pinned(Tail(), len(state.tokens)) if checkpoints is not None else (),
            n_prompt=state.n_prompt,
            n_apart=state.n_apart,
            checkpoints=self._write_checkpoints(checkpoints, len(state.tokens) // SEGMENT, end_of),
        )
        self._put(commit, state.hidden)

    def most_growth(
        self,
        n_tokens: int,
        planes: Sequence[Plane],
        checkpoints: Checkpoints | None,
        states: SavedStates | None,
    ) -> int:
        """The most bytes by which a commit of `n_tokens` tokens makes the pack's files grow."""
        folder, n_full = self._folder, n_tokens // SEGMENT
        n_bytes = 2 * superblock.slot_bytes(folder.manifest.model.n_embd)
        n_bytes += n_tokens % SEGMENT * tail.record_bytes(folder.tail_row_bytes)
        n_files = 8  # beside those of planes
        for plane in planes:
            of_plane = len(folder.names(plane.name))
            n_files += of_plane
            segment = of_plane * stride_of(plane.part_bytes) + log.most_record(of_plane)
            n_bytes += max(0, n_full - len(plane.places)) * segment
        if checkpoints is not None:
            n_new = max(0, n_full - self.n_tokens // SEGMENT)
            n_bytes += (n_new + 2 * checkpoints.windowed.n_before) * folder.checkpoint_bytes
        if states is not None:
            n_bytes += len(states.states.checkpoints) * states.states.memory.nbytes
        return n_bytes + n_files * _BLOCK

    def _recover(self) -> None:
        """Recover from a crash: sync the commit that was read, remove files of no superblock."""
        files.sync(self._folder.fd(superblock.NAME))
        epochs = {epoch for commit, _ in self._folder.commits() for epoch in commit.epochs}
        named = set(map(tail.file_name, epochs))
        for path in self._folder.path.iterdir():
            if tail.NAMES.fullmatch(path.name) and path.name not in named:
                self._folder.forget(path.name)
        for commit, _ in self._folder.commits()[1:]:
            self._other = commit

    def _write_checkpoints(
        self,
        checkpoints: Checkpoints | None,
        n_full: int,
        end_of: Callable[[int], U8 | None] | None = None,
    ) -> tuple[Checkpoint, ...]:
        if checkpoints is None:
            return ()
        taken = {c.slot for old in (self._commit, self._other) for c in old.checkpoints}
        pinned = [pin.n_tokens // SEGMENT for pin in self._pins]
        return checkpoints.write(n_full, taken, pinned, end_of)

    def _write(self, plane: Plane, segment: int) -> tuple[Plane, int, Place]:
        slot = self._next_slot.get(plane.name, 0)
        place = plane.seal(segment, slot, self._folder)
        self._next_slot[plane.name] = slot + 1
        return plane, segment, place

    def _append_log(
        self, tokens: Sequence[int], sealed: list[tuple[Plane, int, Place]]
    ) -> tuple[int, str]:
        """Sync what was sealed, then log it; returns the log's new length and chain."""
        start, chain = self._commit.log_bytes, bytes.fromhex(self._commit.log_chain)
        if not sealed:
            return start, chain.hex()
        for file in {f for plane, *_ in sealed for f in self._folder.names(plane.name)}:
            files.sync(self._folder.fd(file))
        records = []
        for plane, segment, place in sealed:
            ids = np.array(tokens[segment * SEGMENT : (segment + 1) * SEGMENT], "<u4").tobytes()
            record, chain = log.record(plane.name, segment, place, ids, plane.item_bytes, chain)
            records.append(record)
        data = b"".join(records)
        self._folder.write_at(log.NAME, data, start)
        self._folder.sync(log.NAME)
        return start + len(data), chain.hex()

    def _append_tail(
        self, tokens: Sequence[int], kv: Plane, checkpoints: Checkpoints | None
    ) -> Tail:
        """Log the tokens after the full segments that the tail log does not hold yet."""
        n_full = len(tokens) // SEGMENT
        if len(tokens) == n_full * SEGMENT:
            self._tail_segment = -1
            return Tail()  # the file of the segment before is not named any more
        base, old = n_full * SEGMENT, self._commit.tail
        size = tail.record_bytes(self._folder.tail_row_bytes)
        first, fresh = max(self._tail_end, base), False
        if self._tail_segment != n_full or old.n_bytes > _MOST_RECORDS * size:
            first, fresh = base, True
        if len(tokens) <= first:
            return old
        if fresh or not old.epoch:
            old = Tail(max(self._commit.epochs | self._other.epochs) + 1)
        rows = self._folder.rows.gather(kv.buffer(n_full), first - base, len(tokens) - base)
        if checkpoints is not None:
            rows = np.hstack([rows, checkpoints.windowed.take(first, len(tokens))])
        chain = bytes.fromhex(old.chain)
        data, chain = tail.encode(rows, list(tokens[first:]), first, chain)
        name = tail.file_name(old.epoch)
        self._folder.write_at(name, data, old.n_bytes)
        files.sync(self._folder.fd(name))
        if not old.n_bytes:
            files.sync_folder(self._folder.path)
        self._tail_segment, self._tail_end = n_full, len(tokens)
        return Tail(old.epoch, old.n_bytes + len(data), chain.hex())

    def _pinned(self, place: Tail, n_tokens: int) -> tuple[Pin, ...]:
        """The pins of a commit with that tail: the newest ones."""
        if n_tokens == self.text_end:
            others = [pin for pin in self._pins if pin.n_tokens != n_tokens]
            self._pins = [*others, Pin(n_tokens, place)][-_MOST_PINS:]
        return tuple(self._pins)

    def _put(self, commit: Commit, hidden: F32 | None) -> None:
        """Write the superblock, then remove the tail files that none names any more."""
        size = superblock.slot_bytes(self._folder.manifest.model.n_embd)
        data = superblock.encode(commit, hidden)
        self._folder.write_at(superblock.NAME, data, commit.sequence % 2 * size)
        files.sync(self._folder.fd(superblock.NAME))
        for epoch in self._other.epochs - commit.epochs - self._commit.epochs:
            self._folder.forget(tail.file_name(epoch))
        self._other = self._commit
        self._commit, self._valid = commit, commit.n_tokens


def _full(tokens: Sequence[int], kv: Plane, columns: Columns) -> list[tuple[Plane, int]]:
    """The segments that are full and not yet written, K and V before columns."""
    n_full = len(tokens) // SEGMENT
    ends = [(kv, n_full), *((plane, min(n // SEGMENT, n_full)) for plane, n in columns)]
    return [(plane, i) for plane, end in ends for i in range(len(plane.places), end)]
