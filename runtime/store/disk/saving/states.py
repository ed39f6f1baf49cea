"""Checkpoints of the states of a pack's context: those in memory, and those in files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import count

from ...states import States, positions_to_keep
from ..errors import PackDamaged, PackError
from ..folder import PackFolder, State
from ..format.states import NAME, StateSlot, digest_of, read


class SavedStates:
    """The checkpoints of one pack for one store: its own are `named`, others its parents'.

    Those of parents are used where they are after the same tokens.
    """

    def __init__(self, folder: PackFolder, states: States, state: State) -> None:
        self._folder, self.states = folder, states
        self.named = {slot.n_tokens: slot for slot in state.commit.states}
        self._inherited: dict[int, tuple[PackFolder, StateSlot]] = {}
        if folder.parent is not None:
            self.inherit(folder.parent, state.tokens)
        states.n_tokens = None if state.tokens else 0

    def inherit(self, above: PackFolder | None, tokens: Sequence[int]) -> None:
        """Know the checkpoints of a pack, and of its parents, that are after some of `tokens`."""
        while above is not None:
            try:
                slots = above.last_commit().states
            except PackError:
                return  # what it shares with this pack is whole; without these, more is read
            for slot in slots:
                n = slot.n_tokens
                new = n <= len(tokens) and n not in self._inherited
                if new and digest_of(tokens[:n]) == slot.read:
                    self._inherited[n] = above, slot
            above = above.parent

    @property
    def unsaved(self) -> bool:
        """Whether memory has checkpoints that no file has."""
        return any(position not in self.named for position in self.states.checkpoints)

    def cut(self, n_tokens: int) -> None:
        """The tokens from `n_tokens` on are dropped."""
        for known in (self.named, self._inherited):
            for position in [p for p in known if p > n_tokens]:
                del known[position]

    def go_back(self, n_tokens: int) -> int:
        """See `States.go_back`. A checkpoint that a writer has replaced since, or that is damaged,
        is passed over."""
        if self.states.reaches(n_tokens):
            return n_tokens
        in_memory = self.states.newest(n_tokens)
        places = self._inherited | {p: (self._folder, slot) for p, slot in self.named.items()}
        for position in sorted((p for p in places if in_memory < p <= n_tokens), reverse=True):
            folder, slot = places[position]
            try:
                self.states.restore(position, read(folder, slot, self.states.memory.nbytes))
            except PackDamaged:
                continue
            return position
        return self.states.go_back(n_tokens)

    def write(self, tokens: Sequence[int], taken: Collection[int]) -> tuple[StateSlot, ...]:
        """Write the checkpoints that a commit of `tokens` keeps and no file has yet, to slots that
        are not taken, and sync them. Returns all that it keeps."""
        memory, kept, written = self.states.checkpoints, [], False
        known = {p for p in {*self.named, *memory} if p <= len(tokens)}
        free = (slot for slot in count() if slot not in taken)
        for position in positions_to_keep(known, self.states.pins, len(tokens), self.states.most):
            slot = self.named.get(position)
            if slot is None:
                place, data = next(free), memory[position].data
                digest = self._folder.write_slot(NAME, place, data, data.nbytes)
                of_tokens = digest_of(tokens[:position])
                slot, written = StateSlot(position, place, digest.hex(), of_tokens), True
            kept.append(slot)
        if written:
            self._folder.sync(NAME)
        return tuple(kept)

    def keep(self, named: Collection[StateSlot]) -> None:
        """A commit names these: drop the copies in memory."""
        self.named = {slot.n_tokens: slot for slot in named}
        for position in self.named:
            self.states.checkpoints.pop(position, None)
