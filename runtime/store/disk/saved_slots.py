"""Slots as a folder's snapshot has them."""

from __future__ import annotations

import numpy as np

from ..base import Saved
from ..ram.slots import NO_BOUND, SlotStore
from ..states import States
from .errors import PackDamaged
from .folder import PackFolder
from .format import snapshot


class SavedSlots(SlotStore):
    """Slots in memory, restored from the folder's snapshot."""

    def __init__(self, folder: PackFolder, states: States | None = None) -> None:
        plan, model = folder.manifest.slots, folder.manifest.model
        assert plan is not None
        super().__init__(folder.layout, plan.sizes, model.n_kv_heads, plan.whole)
        if states is None and (n_bytes := folder.manifest.state_bytes):
            states = States([[(n_bytes // 4,)]])  # of a model that is not known
        self.folder, self._n_saved, self.states = folder, 0, states
        facts = snapshot.read_facts(folder.path)
        if facts is not None:
            self._restore(facts)

    def _restore(self, facts: snapshot.Facts) -> None:
        path, n_embd = self.folder.path, self.folder.manifest.model.n_embd
        for name, item_bytes in facts.columns.items():
            self.state_column(name, item_bytes)
        # Before memory is taken: the facts are only what the file says.
        rest = facts.n_bytes - 4 * (facts.n_tokens + facts.n_hidden) - facts.n_extra
        if rest != self.state_bytes(facts.reserved) or facts.n_hidden not in (0, n_embd):
            raise PackDamaged(
                path, f"{snapshot.NAME} holds {facts.n_bytes:,} bytes of another kind of store"
            )
        self.reserve(facts.reserved)
        self.extra = np.empty(facts.n_extra, np.uint8)
        tokens, hidden = snapshot.read(path, facts, [*self.parts(), self.extra.data])
        for layer, size in enumerate(self.slots):
            if size != NO_BOUND and not self.holds_each_once(layer, size, len(tokens)):
                raise PackDamaged(path, f"layer {layer} holds tokens twice, or that were not read")
        for column in self.columns.values():
            column.filled[:] = np.minimum(len(tokens), self.slots)
        if self.states is not None:
            self.states.n_tokens = len(tokens)
        self.saved, self._n_saved = Saved(tokens, hidden, facts.n_prompt), len(tokens)
