"""The library: contexts that begin with what was read before."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...context.prompt import check_readable, checked_ids, n_common
from ...engine import on_engine
from ...home import make_folder
from ...prefill import BlocksPrefill, Exact
from ...store import Disk, PackError, Ram, StoreError
from ...store.disk.contents import take_lock
from .answers import Answers
from .entry import Entry, ReadAs, tokens_of
from .idle import Idle
from .room import NoRoom, Room
from .shelf import LEAST, LEAST_KEPT, Shelf, best_of
from .tree import as_tokens

if TYPE_CHECKING:
    from ...context import Context
    from ...context.request import ContextRequest
    from ...model import Model
    from .tree import U32, Match

ANSWERS_SHARE, MOST_ANSWERS = 64, 64 << 20
"""The file of answers has at most this part of all bytes, and at most so many."""
RETRY_SECONDS = 60.0
"""After a failed write, so long nothing is written."""
_FRESH_BYTES = 1 << 20
"""Of a pack without tokens, at most."""


@dataclass(eq=False)
class Lease:
    """A context for one request. cached: how many tokens of its prompt it holds already. entry:
    where it is kept; reads: what it reads and does not write; request: of a context that may wait
    in memory for the next prompt; None: nowhere, nothing, it may not."""

    context: Context
    cached: int
    entry: Entry | None = None
    reads: Entry | None = None
    request: ContextRequest | None = None


class Library:
    """What one model has read, in packs under a folder; used by one process.

    most_bytes: of disk, at most; 0: nothing is written. tell: called with lines for the log. All
    methods run on the engine thread, wherever they are called. What cannot be written waits in
    memory, see `Idle`.
    """

    def __init__(
        self, model: Model, folder: Path, most_bytes: int, tell: Callable[[str], None]
    ) -> None:
        self._model, self._folder, self._tell = model, folder, tell
        self._shelf, self._idle = Shelf(model.info, tell), Idle()
        self._room = Room(most_bytes, self._shelf.entries.values(), self._shelf.remove)
        self._leases: set[Lease] = set()
        self._written = 0
        self._lock: int | None = None
        self._retry_at = 0.0
        self.answers = Answers(model.tokenizer, None)
        """Answers as they were generated, for prompts that have them otherwise; any thread may call
        it."""
        self.problem = ""
        """Why nothing is written to disk; "" if it is, or nobody wants it."""
        if most_bytes:
            on_engine(self._start)

    def open(self, ids: Sequence[int], request: ContextRequest, n_ctx: int) -> Lease:
        """A context for the prompt `ids` that holds the longest beginning of them that was read in
        the same way; the last token is always left to read, for its logits.

        request: how prompts are read and attended to; its store says the types of K and V. A
        context that evicts, one that reads in blocks, and one whose store is not `Ram` are opened
        as they are asked for, share nothing and are not kept. Raises what `Model.open` raises, and
        `ContextError` for ids that cannot be read.
        """
        return on_engine(self._open, ids, request, n_ctx)

    def give_back(self, lease: Lease, keep: bool = True) -> None:
        """Close the context of a lease and keep what it has read and generated, unless `keep` is
        False. Does nothing for a lease that was given back."""
        on_engine(self._give_back, lease, keep)

    def include(self, path: Path) -> Sequence[int]:
        """Let contexts begin with a pack of the user's, which is never changed or removed; returns
        its tokens. `PackError` if it cannot be opened or is of another model."""
        tokens: list[int] = on_engine(self._shelf.include, path).tokens.tolist()
        return tokens

    def close(self) -> None:
        """Give back all leases, and let another process use the folder."""
        on_engine(self._close)

    @property
    def n_bytes(self) -> int:
        """Bytes on disk, at most."""
        return self._room.n_bytes + self.answers.n_bytes

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
        return sum(entry.is_ours for entry in self._shelf.entries.values())

    @property
    def n_leases(self) -> int:
        """Contexts in use."""
        return len(self._leases)

    def _start(self) -> None:
        try:
            make_folder(self._folder)
            self._folder = self._folder.resolve()
            self._lock = take_lock(self._folder)
            self._shelf.load(self._folder)
        except PackError:
            return self._stop_writing(f"{self._folder}: another process keeps what it reads in it")
        except OSError as error:
            return self._stop_writing(f"{self._folder}: {error.strerror or error}")
        file = self._folder / f"answers-{self._model.info.tokenizer_digest}"
        most_bytes = min(self._room.most_bytes // ANSWERS_SHARE, MOST_ANSWERS)
        self.answers = Answers(self._model.tokenizer, file, most_bytes)
        self._room.most_bytes -= most_bytes
        self._room.shrink(self._room.most_bytes)

    def _stop_writing(self, reason: str) -> None:
        if not self.problem:
            self._tell(f"what is read is kept in memory only: {reason}")
        self.problem, self._retry_at = reason, time.monotonic() + RETRY_SECONDS

    @property
    def _writes(self) -> bool:
        """Whether packs can be written now."""
        is_time = not self.problem or time.monotonic() >= self._retry_at
        return self._lock is not None and is_time

    # Opening.

    def _open(self, ids: Sequence[int], request: ContextRequest, n_ctx: int) -> Lease:
        asked = replace(request, n_ctx=n_ctx, prefill=request.prefill or Exact())
        how = self._how(asked, n_ctx)
        if how is None:
            lease = Lease(self._model.open(replace(request, n_ctx=n_ctx)), 0)
        else:
            tokens = self._checked(ids, n_ctx)
            lease = (self._on_disk(ids, tokens, asked, how) if self._writes else None) or Lease(
                *self._in_memory(ids, asked), request=asked
            )
        self._leases.add(lease)
        return lease

    def _checked(self, ids: Sequence[int], n_ctx: int) -> U32:
        """The ids as an array; `ContextError` if they cannot be read."""
        n_vocab = self._model.config.n_vocab
        try:
            tokens = as_tokens(ids)
        except (OverflowError, TypeError):
            check_readable(checked_ids(ids), 0, n_vocab, n_ctx)
            raise
        if not 0 < len(tokens) <= n_ctx or tokens.max() >= n_vocab:
            check_readable(ids, 0, n_vocab, n_ctx)
        return tokens

    def _how(self, request: ContextRequest, n_ctx: int) -> ReadAs | None:
        """How a request reads; None if nothing of it can be shared."""
        prefill, info = request.prefill, self._model.info
        assert prefill is not None
        if not isinstance(request.store, Ram) or request.keep.evicts(n_ctx):
            return None
        if isinstance(prefill, BlocksPrefill):
            return None
        config, types = info.config, request.store.types()
        long_rope = config.rope_tensors == "longrope" and n_ctx > config.n_ctx_orig
        return ReadAs(*types, prefill.resolved(info).facts(info), long_rope)

    def _in_memory(self, ids: Sequence[int], request: ContextRequest) -> tuple[Context, int]:
        """A context that is not written, and how many of the ids it holds."""
        context = self._idle.take(ids[:-1], request, LEAST)
        if context is None:
            try:
                context = self._model.open(request)
            except StoreError:
                if not len(self._idle):
                    raise
                self._idle.close()
                context = self._model.open(request)
        return context, len(context.tokens)

    def _on_disk(
        self, ids: Sequence[int], tokens: U32, request: ContextRequest, how: ReadAs
    ) -> Lease | None:
        """A lease of an entry, or of a new one; None if none can be written."""
        while True:
            match = self._match(tokens[:-1], how)
            source = best_of(match)
            try:
                lease = self._entered(source, match.n_tokens, ids, request, how)
                self.problem = ""
                return lease
            except PackError as error:
                if source is not None and (culprit := source.at_fault(error)) is not None:
                    self._shelf.lose(culprit, error)
                    continue
                self._stop_writing(str(error))
            except NoRoom as error:
                self._tell(str(error))
            return None if source is None else self._following(source, ids, request)

    def _match(self, wanted: U32, how: ReadAs) -> Match[Entry]:
        """The longest beginning, in what is being read now, too."""
        tree = self._shelf.tree(how)
        for lease in self._leases:
            entry, context = lease.entry, lease.context
            if entry is None or entry.read_as != how or context.has_failed_to_save:
                continue
            if len(context.tokens) != len(entry.tokens):
                self._shelf.know(entry, context.tokens)
        return tree.longest(wanted)

    def _entered(
        self,
        source: Entry | None,
        n_tokens: int,
        ids: Sequence[int],
        request: ContextRequest,
        how: ReadAs,
    ) -> Lease:
        """A lease that goes on in the source, or in a new entry that begins with `n_tokens` of
        it."""
        if source is not None and source.is_idle and len(source.tokens) == n_tokens:
            context = self._model.open(replace(request, store=Disk(source.path, how.k, how.v)))
            return self._leased(source, context, ids)
        entry = Entry(self._folder / secrets.token_hex(8), how, np.empty(0, np.uint32))
        n_copied = 0 if source is None else source.most_copied
        self._room.take(entry, _FRESH_BYTES + n_copied, source)
        if source is not None and source.context is not None:
            source.context.commit()
        parent = None if source is None else source.path
        disk = Disk(entry.path, how.k, how.v, parent=parent, n_shared=n_tokens, late=True)
        try:
            context = self._model.open(replace(request, store=disk))
        except BaseException:
            self._shelf.discard(entry.path)
            raise
        self._shelf.entries[entry.path] = entry
        self._shelf.link(entry)
        return self._leased(entry, context, ids)

    def _leased(self, entry: Entry, context: Context, ids: Sequence[int]) -> Lease:
        context.save_within(partial(self._room.take, entry), self._save_failed)
        entry.context = context
        self._shelf.touch(entry)
        kept = context.cut_back(n_common(ids[:-1], context.tokens))
        return Lease(context, kept, entry)

    def _following(self, source: Entry, ids: Sequence[int], request: ContextRequest) -> Lease:
        """A lease whose new tokens stay in memory."""
        context = self._model.open(replace(request, store=Disk(source.path, read_only=True)))
        kept = context.cut_back(n_common(ids[:-1], context.tokens))
        source.n_readers += 1
        self._shelf.touch(source)
        return Lease(context, kept, reads=source)

    def _save_failed(self, error: StoreError) -> None:
        if isinstance(error, NoRoom):
            self._tell(str(error))
        else:
            self._stop_writing(str(error))

    # Giving back.

    def _give_back(self, lease: Lease, keep: bool) -> None:
        if lease not in self._leases:
            return
        self._leases.remove(lease)
        context, entry = lease.context, lease.entry
        context.stop_at(0)  # saving may read the last token again
        if lease.request is not None and keep and len(context.tokens) >= LEAST_KEPT:
            self._idle.put(lease.request, context)
            return
        if lease.reads is not None:
            lease.reads.n_readers -= 1
        if entry is not None and not (keep and len(context.tokens) > lease.cached):
            context.save_no_more()
        store, is_saved = context.store, not context.has_failed_to_save
        try:
            context.close()
        except StoreError as error:
            self._tell(str(error))
            is_saved = False
        self._written += store.written_bytes
        if entry is not None:
            self._settle(entry, context.tokens if is_saved else None, keep)

    def _settle(self, entry: Entry, tokens: Sequence[int] | None, keep: bool) -> None:
        """Nothing writes to an entry any more. tokens: None: those of its last commit."""
        entry.context = None
        try:
            self._shelf.know(entry, tokens_of(entry.path) if tokens is None else tokens)
        except PackError as error:
            self._shelf.lose(entry, error)
            return
        entry.measure()
        self._shelf.touch(entry)
        if not entry.n_children and (not keep or self._shelf.is_superfluous(entry)):
            self._shelf.remove(entry)
        self._room.shrink(self._room.most_bytes)

    def _close(self) -> None:
        for lease in list(self._leases):
            self._give_back(lease, True)
        self._idle.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
