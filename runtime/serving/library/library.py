"""The library: what was read before, kept for the contexts that begin with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...engine import engine_method
from ...home import make_folder
from ...store import PackError, StoreError
from ...store.disk.contents import take_lock
from .answers import Answers
from .catalogue import LEAST_KEPT
from .entry import Entry, tokens_of
from .opening import ContextOpener, Lease

if TYPE_CHECKING:
    from ....ops.arrays import U32
    from ...model import Model

ANSWERS_SHARE, MOST_ANSWERS = 64, 64 << 20
"""The file of answers has at most this part of all bytes, and at most so many."""


class Library(ContextOpener):
    """What one model has read, in packs under a folder; used by one process.

    most_bytes: of disk, at most; 0: nothing is written. tell: called with lines for the log. All
    methods but `texts` run on the engine thread, wherever they are called. What cannot be written
    waits in memory, see `IdleContexts`.
    """

    def __init__(
        self, model: Model, folder: Path, most_bytes: int, tell: Callable[[str], None]
    ) -> None:
        super().__init__(model, folder, most_bytes, tell)
        self._written = 0
        self.answers = Answers(model.tokenizer, None)
        """Answers as they were generated, for prompts that have them otherwise; any thread may call
        it."""
        if most_bytes:
            self._start()

    @engine_method
    def release(self, lease: Lease, keep: bool = True) -> None:
        """Close the context of a lease and keep what it has read and generated, unless `keep` is
        False. Does nothing for a lease that was given back."""
        if lease not in self._leases:
            return
        self._leases.remove(lease)
        context, entry = lease.context, lease.entry
        context.stop_at(0)  # saving may read the last token again
        if lease.source is not None:
            lease.source.n_readers -= 1
        if lease.idle_key is not None and keep and len(context.tokens) >= LEAST_KEPT:
            self._idle.put(lease.idle_key, context)
            return
        if entry is not None and not (keep and len(context.tokens) > lease.cached):
            context.stop_saving()
        store, is_saved = context.store, not context.has_failed_to_save
        try:
            context.close()
        except StoreError as error:
            self._tell(str(error))
            is_saved = False
        self._written += store.written_bytes
        if entry is not None:
            self._close_entry(entry, context.tokens if is_saved else None, keep)

    @engine_method
    def include(self, path: Path) -> Sequence[int]:
        """Let contexts begin with a pack of the user's, which is never changed or removed; returns
        its tokens. `PackError` if it cannot be opened or is of another model."""
        tokens: list[int] = self._catalogue.include(path).tokens.tolist()
        return tokens

    def texts(self) -> dict[Path, U32]:
        """The tokens of all that contexts can begin with, by their packs; none, where they are not
        read yet. Any thread may call this, and waits for none."""
        entries = list(self._catalogue.entries.values())
        return {entry.path: entry.tokens for entry in entries if entry.kv_key is not None}

    @engine_method
    def close(self) -> None:
        """Give back all leases, and let another process use the folder."""
        for lease in list(self._leases):
            self.release(lease)
        self._idle.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def n_bytes(self) -> int:
        """Bytes on disk, at most."""
        return self._budget.n_bytes + self.answers.n_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of contexts that wait in memory."""
        return self._idle.n_bytes

    @property
    def written_bytes(self) -> int:
        """Bytes that have been written to packs since the library was made."""
        return self._written + sum(lease.context.store.written_bytes for lease in self._leases)

    @property
    def n_entries(self) -> int:
        """Texts that are kept on disk."""
        return sum(entry.is_managed for entry in self._catalogue.entries.values())

    @engine_method
    def _start(self) -> None:
        try:
            make_folder(self._folder)
            self._folder = self._folder.resolve()
            self._lock = take_lock(self._folder)
            self._catalogue.load(self._folder)
        except PackError:
            return self._stop_writing(f"another process writes to {self._folder}")
        except OSError as error:
            return self._stop_writing(f"{self._folder}: {error.strerror or error}")
        file = self._folder / f"answers-{self._model.info.tokenizer_digest}"
        most_bytes = min(self._budget.most_bytes // ANSWERS_SHARE, MOST_ANSWERS)
        self.answers = Answers(self._model.tokenizer, file, most_bytes)
        self._budget.most_bytes -= most_bytes
        self._budget.shrink(self._budget.most_bytes)

    def _close_entry(self, entry: Entry, tokens: Sequence[int] | None, keep: bool) -> None:
        """Nothing writes to an entry any more. tokens: None: those of its last commit."""
        entry.context = None
        try:
            self._catalogue.set_tokens(entry, tokens_of(entry.path) if tokens is None else tokens)
        except PackError as error:
            self._catalogue.invalidate(entry, error)
            return
        entry.measure()
        self._catalogue.touch(entry)
        if not entry.n_children and (not keep or self._catalogue.is_redundant(entry)):
            self._catalogue.remove(entry)
        self._budget.shrink(self._budget.most_bytes)
