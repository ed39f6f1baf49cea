"""Layers with a window in a pack: what memory holds of them, and the checkpoints in a file."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count

import numpy as np

from .....ops.arrays import U8
from .....ops.attention.layout import SEGMENT
from ...windowed import WindowedLayers
from ..errors import PackDamaged
from ..folder import PackFolder, State
from ..format import checkpoints
from ..format.checkpoints import Checkpoint, newest_end, segments_to_keep


class Checkpoints:
    """The checkpoints of a pack for one store: `named` are those that hold its tokens."""

    def __init__(self, folder: PackFolder, windowed: WindowedLayers, state: State) -> None:
        self._folder, self.windowed = folder, windowed
        self.named = {c.segment: c for c in state.commit.checkpoints}
        windowed.restore(state.n_full * SEGMENT, state.recent)

    @classmethod
    def of(cls, folder: PackFolder, state: State) -> Checkpoints | None:
        """None where no layer has a window. state: with `recent`."""
        windows = folder.manifest.windows
        return cls(folder, WindowedLayers(*folder.in_windows, windows), state) if windows else None

    def cut(self, n_tokens: int) -> None:
        """The tokens from `n_tokens` on are dropped."""
        self.windowed.cut(n_tokens)
        for segment in [s for s in self.named if (s + 1) * SEGMENT > n_tokens]:
            del self.named[segment]

    def go_back(self, n_tokens: int) -> int:
        """See `KVStore.go_back`. A checkpoint that a writer has replaced since, or that is damaged,
        is passed over."""
        windowed, n_before = self.windowed, self.windowed.n_before
        in_memory, end = windowed.newest(n_tokens), n_tokens // SEGMENT
        while not windowed.reaches(n_tokens):
            end = newest_end(self.named, n_before, end)
            if end * SEGMENT <= in_memory:
                break
            try:
                rows = self._folder.read_recent(self.named, end)
            except PackDamaged:
                end -= 1
                continue
            windowed.restore(end * SEGMENT, rows)
            return end * SEGMENT
        return windowed.go_back(n_tokens)

    def write(
        self,
        n_full: int,
        taken: Collection[int],
        pinned: Collection[int],
        end_of: Callable[[int], U8 | None] | None = None,
    ) -> tuple[Checkpoint, ...]:
        """Write the checkpoints that a commit with `n_full` full segments needs and no file has
        yet, to slots that are not taken, and sync them. Returns all that it needs.

        pinned: full segments before pins. Those before a pack's own first one after its parent's
        are kept, too. end_of: gives the last tokens of a segment, by default those in memory."""
        n_before, written = self.windowed.n_before, False
        free = (slot for slot in count() if slot not in taken)
        kept: dict[int, Checkpoint] = {}
        parent, spacing = self._folder.manifest.parent, self.windowed.every // SEGMENT
        shared = 0 if parent is None else parent.n_segments
        for segment in segments_to_keep(n_full, n_before, spacing, (shared, *pinned)):
            if segment in self.named:
                kept[segment] = self.named[segment]
            elif (rows := (end_of or self.windowed.end_of)(segment)) is not None:
                slot, data = next(free), np.ascontiguousarray(rows).data
                digest = self._folder.write_slot(
                    checkpoints.NAME, slot, data, self._folder.checkpoint_bytes
                )
                kept[segment], written = Checkpoint(segment, slot, digest.hex()), True
        assert newest_end(kept, n_before, n_full) == n_full
        if written:
            self._folder.sync(checkpoints.NAME)
        return tuple(kept.values())

    def keep(self, named: Collection[Checkpoint]) -> None:
        """A commit names these: drop the copies of regular ones in memory."""
        self.named = {c.segment: c for c in named}
        in_memory = self.windowed.checkpoints
        for position in [p for p in in_memory if p % self.windowed.every == 0]:
            end = position // SEGMENT
            if newest_end(self.named, self.windowed.n_before, end) == end:
                del in_memory[position]
