"""When a context saves itself, and what it does after a save has failed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..store import KVStore
    from .token_reader import TokenReader

TOKENS = 64
SECONDS = 1.0
"""Generated tokens are saved this often, if the store saves."""


class Saving:
    """The saves of one context's store."""

    def __init__(self, store: KVStore, reader: TokenReader) -> None:
        self._store, self._reader = store, reader
        self._saved(len(store.saved.tokens))
        self.failed = False

    def due(self, n_tokens: int) -> bool:
        """Whether a context that has generated up to `n_tokens` is to be saved now.

        Not after a failed save: the user knows, and another one would fail as well.
        """
        if not self._store.saves or self.failed:
            return False
        return n_tokens - self._n_saved >= TOKENS or time.perf_counter() - self._saved_at >= SECONDS

    def commit(self) -> None:
        """Save all that was read, if the store saves; `StoreError` as `save`.

        Runs on the engine thread, and so after a step that a second interrupt did not wait for.
        """
        if self._store.saves:
            self._reader.read_last_again()
            self.save()

    def close(self) -> None:
        """Save what is not saved yet, unless a save has failed, and close the store. Runs on the
        engine thread."""
        try:
            if not self.failed:
                self._reader.end_text()
                self.commit()
        finally:
            self._store.close()

    def save(self) -> None:
        """Save, the hidden state too if it is known; `StoreError` if that fails."""
        self.failed, reader = True, self._reader
        self._store.commit(reader.tokens, reader.hidden, reader.n_prompt)
        self.failed = False
        self._saved(len(reader.tokens))

    def _saved(self, n_tokens: int) -> None:
        self._n_saved, self._saved_at = n_tokens, time.perf_counter()
