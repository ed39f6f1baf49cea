"""Leases of a library: contexts that begin with what was read before."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...context.reading.prompt import check_readable, checked_ids, n_common
from ...engine import engine_method
from ...store import Disk, PackError, StoreError
from .budget import BudgetExceeded, DiskBudget
from .catalogue import LEAST, Catalogue, best_entry
from .entry import Entry
from .idle import ContextKey, IdleContexts
from .policy import Prefix, ReadingPolicy, policy_of
from .tree import as_tokens

if TYPE_CHECKING:
    from ....ops.arrays import U32
    from ...context import Context
    from ...context.planning.request import ContextRequest
    from ...model import Model
    from ...prefill import Prefill

RETRY_SECONDS = 60.0
"""After a failed write, so long nothing is written."""
_FRESH_BYTES = 1 << 20
"""Of a pack without tokens, at most."""


@dataclass(eq=False)
class Lease:
    """A context for one request. cached: how many tokens of its prompt it holds already. entry:
    where it is kept; source: what it reads and does not write; idle_key: the prompts for which it
    may wait in memory; None: nowhere, nothing, it may not."""

    context: Context
    cached: int
    entry: Entry | None = None
    source: Entry | None = None
    idle_key: ContextKey | None = None


class ContextOpener:
    """Opens contexts: of packs in `folder`, of contexts that wait in memory, or new ones."""

    def __init__(
        self, model: Model, folder: Path, most_bytes: int, tell: Callable[[str], None]
    ) -> None:
        self._model, self._folder, self._tell = model, folder, tell
        self._catalogue, self._idle = Catalogue(model.info, tell), IdleContexts()
        self._budget = DiskBudget(
            most_bytes, self._catalogue.entries.values(), self._catalogue.remove
        )
        self._leases: set[Lease] = set()
        self._lock: int | None = None
        self._retry_at = 0.0
        self.problem = ""
        """Why nothing is written to disk; "" if it is, or nobody wants it."""

    @engine_method
    def open(
        self,
        ids: Sequence[int],
        request: ContextRequest,
        n_ctx: int,
        pack: Path | None = None,
    ) -> Lease:
        """A context for the prompt `ids` that holds the longest beginning of them that was read in
        a way that the request allows (`ReadingPolicy`); the last token is always left to read, for
        its logits.

        request: how prompts are read and attended to; its store says the types of K and V. A
        context that evicts, one that reads in blocks, and one whose store is not `Ram` are opened
        as they are asked for, share nothing and are not kept. pack: one of the user's, with whose
        tokens the ids begin. Raises what `Model.open` and `include` raise, and `ContextError` for
        ids that cannot be read.
        """
        sized = replace(request, n_ctx=n_ctx)
        how = None if pack is None else self._catalogue.include(pack).kv_key
        policy = policy_of(self._model, sized, n_ctx, how)
        if policy is None:
            lease = Lease(self._model.open(sized), 0)
        else:
            tokens = self._checked(ids, n_ctx)
            on_disk = self._lease_on_disk(ids, tokens, sized, policy) if self._can_write else None
            lease = on_disk or self._lease_in_memory(ids, tokens, sized, policy)
        self._leases.add(lease)
        return lease

    @engine_method
    def open_read_only(self, lease: Lease, request: ContextRequest) -> Context:
        """A context of as much room that holds the tokens of a lease as far as they are on disk, or
        can be saved now, and writes nothing. Raises what `Model.open` raises."""
        context, entry = lease.context, lease.entry or lease.source
        if lease.entry is not None:
            context.commit()
            if context.has_failed_to_save:
                entry = None
        if entry is not None:
            request = replace(request, store=Disk(entry.path, read_only=True))
        return self._model.open(replace(request, n_ctx=context.n_ctx))

    def _stop_writing(self, reason: str) -> None:
        if not self.problem:
            self._tell(f"what is read is kept in memory only: {reason}")
        self.problem, self._retry_at = reason, time.monotonic() + RETRY_SECONDS

    @property
    def _can_write(self) -> bool:
        """Whether packs can be written now."""
        is_time = not self.problem or time.monotonic() >= self._retry_at
        return self._lock is not None and is_time

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

    def _lease_on_disk(
        self, ids: Sequence[int], tokens: U32, request: ContextRequest, policy: ReadingPolicy
    ) -> Lease | None:
        """A lease of an entry, or of a new one; None if none can be written."""
        while True:
            prefix = self._longest_prefix(tokens, policy)
            source = best_entry(prefix.match)
            try:
                lease = self._open_entry(source, prefix, ids, request)
                self.problem = ""
                return lease
            except PackError as error:
                if self._invalidate_culprit(source, error):
                    continue
                self._stop_writing(str(error))
            except BudgetExceeded as error:
                self._tell(str(error))
            return None

    def _lease_in_memory(
        self, ids: Sequence[int], tokens: U32, request: ContextRequest, policy: ReadingPolicy
    ) -> Lease:
        """A lease whose new tokens stay in memory: of a context that waits there, one that follows
        a pack, or a new one."""
        key = ContextKey(request, policy.anew)
        while True:
            prefix = self._longest_prefix(tokens, policy)
            least = max(LEAST, prefix.match.n_tokens, policy.least_memory_prefix(len(ids)))
            if (waiting := self._idle.take(ids[:-1], key, least)) is not None:
                return Lease(waiting, len(waiting.tokens), idle_key=key)
            source = best_entry(prefix.match)
            if source is None:
                prefill = policy.memory_prefill(len(ids))
                return Lease(self._open_in_memory(request, prefill), 0, idle_key=key)
            try:
                return self._lease_read_only(source, ids, request, prefix.prefill, key)
            except PackError as error:
                if not self._invalidate_culprit(source, error):
                    raise

    def _invalidate_culprit(self, source: Entry | None, error: PackError) -> bool:
        """Whether a source is at fault for an error; nothing begins with it from now on."""
        culprit = None if source is None else source.find_culprit(error)
        if culprit is not None:
            self._catalogue.invalidate(culprit, error)
        return culprit is not None

    def _open_in_memory(self, request: ContextRequest, prefill: Prefill) -> Context:
        """An empty context; those that wait are closed where it needs their memory."""
        request = replace(request, prefill=prefill)
        try:
            return self._model.open(request)
        except StoreError:
            if not len(self._idle):
                raise
        self._idle.close()
        return self._model.open(request)

    def _longest_prefix(self, tokens: U32, policy: ReadingPolicy) -> Prefix:
        """The longest beginning, in what is being read now, too."""
        for lease in self._leases:
            entry, context = lease.entry, lease.context
            if entry is None or context.has_failed_to_save:
                continue
            if entry.kv_key in (policy.anew, policy.after) and len(context.tokens) != len(
                entry.tokens
            ):
                self._catalogue.set_tokens(entry, context.tokens)
        anew = self._catalogue.tree(policy.anew).longest(tokens[:-1])
        same = policy.after == policy.anew
        after = anew if same else self._catalogue.tree(policy.after).longest(tokens[:-1])
        return policy.choose(anew, after, len(tokens))

    def _open_entry(
        self,
        source: Entry | None,
        prefix: Prefix,
        ids: Sequence[int],
        request: ContextRequest,
    ) -> Lease:
        """A lease that goes on in the source, or in a new entry that begins with as much of it as
        the prompt does."""
        how, n_tokens = prefix.kv_key, prefix.match.n_tokens
        request = replace(request, prefill=prefix.prefill)
        ends_here = source is not None and len(source.tokens) == n_tokens
        if source is not None and ends_here and source.is_idle and source.kv_key == how:
            context = self._model.open(replace(request, store=Disk(source.path, how.k, how.v)))
            return self._lease_entry(source, context, ids)
        entry = Entry(self._folder / secrets.token_hex(8), how, np.empty(0, np.uint32))
        n_copied = 0 if source is None else source.max_copied_bytes
        self._budget.reserve(entry, _FRESH_BYTES + n_copied, source)
        if source is not None and source.context is not None:
            source.context.commit()
        parent = None if source is None else source.path
        disk = Disk(entry.path, how.k, how.v, parent=parent, n_shared=n_tokens, late=True)
        try:
            context = self._model.open(replace(request, store=disk))
        except BaseException:
            self._catalogue.discard(entry.path)
            raise
        self._catalogue.entries[entry.path] = entry
        self._catalogue.link(entry)
        return self._lease_entry(entry, context, ids)

    def _lease_entry(self, entry: Entry, context: Context, ids: Sequence[int]) -> Lease:
        context.limit_saves(partial(self._budget.reserve, entry), self._save_failed)
        entry.context = context
        self._catalogue.touch(entry)
        n_kept = context.cut_back(n_common(ids[:-1], context.tokens))
        return Lease(context, n_kept, entry)

    def _lease_read_only(
        self,
        source: Entry,
        ids: Sequence[int],
        request: ContextRequest,
        prefill: Prefill,
        key: ContextKey,
    ) -> Lease:
        """A lease that reads a pack in place. It may wait in memory after a pack of the user's;
        those of the library are wanted where they are."""
        store = Disk(source.path, read_only=True)
        context = self._model.open(replace(request, store=store, prefill=prefill))
        n_kept = context.cut_back(n_common(ids[:-1], context.tokens))
        source.n_readers += 1
        self._catalogue.touch(source)
        return Lease(context, n_kept, None, source, None if source.is_managed else key)

    def _save_failed(self, error: StoreError) -> None:
        if isinstance(error, BudgetExceeded):
            self._tell(str(error))
        else:
            self._stop_writing(str(error))
