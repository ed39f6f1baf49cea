"""When a context saves itself, and what it does after a save has failed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..store import KVStore
    from .token_reader import TokenReader

TOKENS = 64
SECONDS = 1.0
"""Generated tokens are saved this often, where the store saves."""


class Saving:
    """The saves of one context's store."""

    def __init__(self, store: KVStore, reader: TokenReader) -> None:
        self._store, self._reader = store, reader
        self._saved(len(store.saved.tokens))
        self.failed = False

    def due(self, n_tokens: int) -> bool:
        """Whether a context that generates, and has come to `n_tokens`, is to be saved now.

        Not after a save that failed: that was told, and will not get better by itself.
        """
        if not self._store.saves or self.failed:
            return False
        return n_tokens - self._n >= TOKENS or time.perf_counter() - self._at >= SECONDS

    def commit(self) -> None:
        """Save all that was read, where the store saves; `StoreError` as `save`.

        On the engine thread, which may still have been in a step that two interrupts left.
        """
        if self._store.saves:
            self._reader.read_last_again()
            self.save(self._reader.tokens, self._reader.hidden)

    def close(self) -> None:
        """Save what is not saved yet, and let go of the store; after a save that failed there is
        no other one. On the engine thread."""
        try:
            if not self.failed:
                self.commit()
        finally:
            self._store.close()

    def save(self, tokens: Sequence[int], hidden: NDArray[np.float32] | None) -> None:
        """Save; `StoreError` where that fails, the first time and every other."""
        self.failed = True
        self._store.commit(tokens, hidden)
        self.failed = False
        self._saved(len(tokens))

    def _saved(self, n_tokens: int) -> None:
        self._n, self._at = n_tokens, time.perf_counter()
