"""The KV cache of a context that evicts, saved in whole snapshots (see `format.snapshot`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....ops.attention.layout import TileLayout
from ..base import Saved, SlotPlan
from ..slots import NO_BOUND, SlotStore
from .errors import PackDamaged, PackError
from .folder import PackFolder
from .format import snapshot

if TYPE_CHECKING:
    from numpy.typing import NDArray

PATIENCE = 20
"""The next snapshot is written after this many times the seconds that the last one took, and on
closing: so saving takes some 5% of the time, for caches of any size."""


class DiskSlots(SlotStore):
    """Slots in memory, restored from the folder's snapshot and saved to it."""

    def __init__(
        self, layout: TileLayout, plan: SlotPlan, n_kv_heads: int, folder: PackFolder
    ) -> None:
        super().__init__(layout, plan.sizes, n_kv_heads, plan.whole)
        self.folder, self._n_saved = folder, 0
        self._unsaved: Saved | None = None
        self._next = 0.0
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
        self.saved, self._n_saved = Saved(tokens, hidden, facts.n_prompt), len(tokens)

    @property
    def saves(self) -> bool:
        return self.folder.writable

    def cut(self, n_tokens: int) -> None:
        self._unsaved = None  # the slots are about to change

    def commit(
        self, tokens: Sequence[int], hidden: NDArray[np.float32] | None, n_prompt: int = 0
    ) -> None:
        if not self.saves:
            return
        self._unsaved = Saved(list(tokens), hidden if hidden is None else hidden.copy(), n_prompt)
        if time.perf_counter() >= self._next:
            self._write()

    def _write(self) -> None:
        """Write the snapshot that is due; if that fails, it is not tried again."""
        if self._unsaved is None:
            return
        now, self._unsaved = self._unsaved, None
        columns = {name: column.item_bytes for name, column in self.columns.items()}
        parts, extra = self.parts(), self.extra_parts()
        state = snapshot.Snapshot(
            now.tokens, now.hidden, self.reserved, columns, parts, extra, now.n_prompt
        )
        began = time.perf_counter()
        try:
            snapshot.write(self.folder.path, state)
        except OSError as error:
            raise PackError(
                self.folder.path,
                f"cannot be written: {error.strerror or error}; it keeps its last snapshot, of "
                f"{self._n_saved:,} tokens",
            ) from error
        ended = time.perf_counter()
        self._n_saved, self._next = len(now.tokens), ended + PATIENCE * (ended - began)

    def check_saved(self) -> None:
        from .verify import check  # imports this module

        check(self.folder.path)

    def close(self) -> None:
        """Save what is not saved yet, and close the folder."""
        try:
            self._write()
        finally:
            self.folder.close()
