"""When a context saves itself, and what it does after a save has failed."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...ops.attention.layout import SEGMENT
from ..store import KVStore, StoreError
from ..store.base import Allow
from .reading.token_reader import TokenReader

TOKENS = 64
SECONDS = 1.0
"""Generated tokens are saved this often, if the store saves."""
READING_SECONDS = 20.0
"""A prompt is saved where a segment ends, and in between if the last save is longer ago. A save in
between writes tokens to the tail log that are written again with their segment."""


class Saving:
    """The saves of one context's store."""

    def __init__(self, store: KVStore, reader: TokenReader) -> None:
        self._store, self._reader = store, reader
        self._count_saved(len(store.saved.tokens))
        self.failed = False
        self._on_failure: Callable[[StoreError], None] | None = None

    def limit(self, allow: Allow, on_failure: Callable[[StoreError], None]) -> None:
        """See `Context.limit_saves`."""
        self._store.limit_saves(allow)
        self._on_failure = on_failure

    def stop_saving(self) -> None:
        """Save nothing any more."""
        self.failed, self._on_failure = True, self._on_failure or _ignore

    def is_due(self, n_tokens: int) -> bool:
        """Whether a context that has generated up to `n_tokens` is to be saved now.

        Not after a failed save: the user knows, and another one would fail as well.
        """
        if not self._store.saves or self.failed:
            return False
        return n_tokens - self._n_saved >= TOKENS or time.perf_counter() - self._saved_at >= SECONDS

    def is_due_while_reading(self, n_tokens: int) -> bool:
        """Whether a context that has read up to `n_tokens` of a prompt is to be saved now."""
        if n_tokens % SEGMENT == 0:
            return True
        return time.perf_counter() - self._saved_at >= READING_SECONDS

    def commit(self) -> None:
        """Save all that was read, if the store saves; `StoreError` as `save`.

        Runs on the engine thread, and so after a step that a second interrupt did not wait for.
        """
        gave_up = self.failed and self._on_failure is not None
        if self._store.saves and not gave_up:
            self._reader.reread_last()
            self.save()

    def close(self) -> None:
        """Save what is not saved yet, unless a save has failed, and close the store. Runs on the
        engine thread."""
        try:
            if self._store.saves and not self.failed:
                self._reader.end_text()
                self.commit()
        finally:
            self._store.close()

    def save(self) -> None:
        """Save, the hidden state too if it is known; `StoreError` if that fails."""
        self.failed, reader = True, self._reader
        try:
            self._store.commit(reader.tokens, reader.hidden, reader.n_prompt)
        except StoreError as error:
            if self._on_failure is None:
                raise
            self._on_failure(error)
            return
        self.failed = False
        self._count_saved(len(reader.tokens))

    def _count_saved(self, n_tokens: int) -> None:
        self._n_saved, self._saved_at = n_tokens, time.perf_counter()


def _ignore(error: StoreError) -> None:
    """Do nothing about a failed save."""
