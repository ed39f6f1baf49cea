"""The KV cache of a context that evicts, saved in whole snapshots (see `format.snapshot`)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ....ops.arrays import F32
from ...token_ids import TokenIds
from ..base import Saved
from .checking.verify import check
from .errors import PackError
from .format import snapshot
from .saved_slots import SavedSlots

PATIENCE = 20
"""Between two snapshots pass this many times the seconds that the first one took: saving takes 5%
of the time, for caches of any size. Closing writes the last one."""


class DiskSlots(SavedSlots):
    """Slots in memory, restored from the folder's snapshot and saved to it."""

    _unsaved: Saved | None = None
    _next = 0.0

    @property
    def saves(self) -> bool:
        return self.folder.writable

    def cut(self, n_tokens: int) -> None:
        super().cut(n_tokens)
        self._unsaved = None  # the slots are about to change

    def commit(self, tokens: Sequence[int], hidden: F32 | None, n_prompt: int = 0) -> None:
        if not self.saves:
            return
        hidden = hidden if hidden is None else hidden.copy()
        self._unsaved = Saved(TokenIds(tokens), hidden, n_prompt)
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
        check(self.folder.path)

    def close(self) -> None:
        """Save what is not saved yet, and close the folder."""
        try:
            self._write()
        finally:
            self.folder.close()
