"""The library: contexts that begin with what was read before."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....ops.attention.layout import SEGMENT
from ...context.prompt import check_readable, n_common
from ...engine import on_engine
from ...home import make_folder
from ...prefill import BlocksPrefill, Exact
from ...store import Disk, PackError, Ram, StoreError
from ...store.disk.contents import remove_files, take_lock
from ...store.disk.errors import PackDamaged
from ...store.disk.folder import PackFolder
from ...store.disk.format.manifest import NAME, Manifest
from ...store.disk.parents import MOST_DEPTH
from .answers import Answers
from .entry import Entry, ReadAs, disk_bytes, read_as, tokens_of
from .room import NoRoom, Room
from .tree import TokenTree

if TYPE_CHECKING:
    from ...context import Context
    from ...context.request import ContextRequest
    from ...model import Model
    from .tree import U32, Match

LEAST = 16
"""Tokens that a beginning must have to be worth a pack that begins with it."""
LEAST_KEPT = 64
"""Tokens that an entry must have to be kept: fewer are read in no time."""
ANSWERS_SHARE, MOST_ANSWERS = 64, 64 << 20
"""The file of answers has at most this share of all bytes, and at most so many."""
_CANDIDATES = 64
_FRESH_BYTES = 1 << 20
"""Of a pack without tokens, at most."""


@dataclass(eq=False)
class Lease:
    """A context for one request. cached: how many tokens of its prompt it holds already. entry:
    where it is kept; None: nowhere. reads: the entry that it reads and does not write."""

    context: Context
    cached: int
    entry: Entry | None = None
    reads: Entry | None = None


class Library:
    """What one model has read, in packs under a folder; used by one process.

    most_bytes: of disk, at most; 0: nothing is written. tell: called with lines for the log.
    Every method runs on the engine thread, wherever it is called.
    """

    def __init__(
        self, model: Model, folder: Path, most_bytes: int, tell: Callable[[str], None]
    ) -> None:
        self._model, self._folder, self._tell = model, folder, tell
        self._entries: dict[Path, Entry] = {}
        self._trees: dict[ReadAs, TokenTree[Entry]] = {}
        self._unread: list[Entry] = []
        self._room = Room(most_bytes, self._entries.values(), self._remove)
        self._leases: set[Lease] = set()
        self._written = 0
        self._lock: int | None = None
        self._clock = 0.0
        self.answers = Answers(model.tokenizer, None)
        """Answers as they were generated, for prompts that have them otherwise; any thread may call
        it."""
        self.problem = ""
        """Why nothing is written to disk; "" if it is."""
        if most_bytes:
            on_engine(self._start)

    # What others call.

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
        return on_engine(self._include, path)

    def close(self) -> None:
        """Give back all leases, and let another process use the folder."""
        on_engine(self._close)

    @property
    def n_bytes(self) -> int:
        """Bytes on disk, at most."""
        return self._room.n_bytes

    @property
    def written_bytes(self) -> int:
        """Bytes that have been written to packs since the library was made."""
        return self._written + sum(lease.context.store.written_bytes for lease in self._leases)

    @property
    def n_entries(self) -> int:
        """Texts that are kept."""
        return sum(entry.is_ours for entry in self._entries.values())

    @property
    def n_leases(self) -> int:
        """Contexts in use."""
        return len(self._leases)

    # The start.

    def _start(self) -> None:
        try:
            make_folder(self._folder)
            self._folder = self._folder.resolve()
            self._lock = take_lock(self._folder)
            file = self._folder / f"answers-{self._model.info.tokenizer_digest}"
            most_bytes = min(self._room.most_bytes // ANSWERS_SHARE, MOST_ANSWERS)
            self.answers = Answers(self._model.tokenizer, file, most_bytes)
            self._room.beside = lambda: self.answers.n_bytes
        except PackError:
            return self._stop_writing(f"{self._folder}: another process keeps what it reads in it")
        except OSError as error:
            return self._stop_writing(f"{self._folder}: {error.strerror or error}")
        for path in sorted(p for p in self._folder.iterdir() if p.is_dir()):
            self._add(path.resolve())
        for entry in list(self._entries.values()):
            self._link(entry)
        self._unread = [entry for entry in self._entries.values() if entry.read_as is not None]
        self._room.shrink(self._room.most_bytes)

    def _stop_writing(self, reason: str) -> None:
        if not self.problem:
            self._tell(f"what is read is kept in memory only: {reason}")
        self.problem = reason

    def _add(self, path: Path, is_ours: bool = True) -> None:
        """Know a pack, without reading its tokens. One that is damaged is removed."""
        if not (path / NAME).exists():  # a killed process has left it
            self._discard(path)
            return
        try:
            how = read_as(Manifest.read(path), self._model.info)
        except PackDamaged as error:
            self._drop(path, error)
            return
        except PackError:
            how = None  # of another version of kvarn
        entry = Entry(path, how, np.empty(0, np.uint32), is_ours=is_ours)
        entry.used = path.stat().st_mtime
        entry.measure()
        self._entries[path] = entry

    def _link(self, entry: Entry) -> None:
        """Find the entry that one begins with."""
        try:
            parent = Manifest.read(entry.path).parent
        except PackError:
            return
        if parent is None:
            return
        entry.above = self._entries.get(Path(parent.path))
        if entry.above is None and entry.is_ours and entry.read_as is not None:
            entry.read_as = None  # found by nothing, it goes when room is needed
        elif entry.above is not None:
            entry.above.n_children += 1

    def _read_tokens(self) -> None:
        """Read the tokens of entries that are known by name only."""
        while self._unread:
            entry = self._unread.pop()
            if entry.path not in self._entries or entry.read_as is None:
                continue
            try:
                entry.tokens = tokens_of(entry.path)
            except PackError as error:
                self._lose(entry, error)
                continue
            self._tree(entry.read_as).insert(entry.tokens, entry)

    # Opening.

    def _open(self, ids: Sequence[int], request: ContextRequest, n_ctx: int) -> Lease:
        check_readable(ids, 0, self._model.config.n_vocab, n_ctx)
        asked = replace(request, n_ctx=n_ctx, prefill=request.prefill or Exact())
        how = self._how(asked, n_ctx)
        lease = None
        if how is not None and not self.problem and self._room.most_bytes:
            lease = self._from_disk(ids, asked, how)
        if lease is None:
            lease = Lease(self._model.open(request if how is None else asked), 0)
        self._leases.add(lease)
        return lease

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

    def _from_disk(self, ids: Sequence[int], request: ContextRequest, how: ReadAs) -> Lease | None:
        """A lease of an entry, or of a new one; None if none can be written."""
        self._read_tokens()
        wanted = np.asarray(ids[:-1], np.uint32)
        while True:
            match = self._match(wanted, how)
            source = self._source(match)
            try:
                return self._entered(source, match.n_tokens, ids, request, how)
            except NoRoom as error:
                self._tell(str(error))
                return None if source is None else self._following(source, ids, request)
            except PackError as error:
                if source is None or not self._is_at_fault(source):
                    self._stop_writing(str(error))
                    return None
                self._lose(source, error)

    def _match(self, wanted: U32, how: ReadAs) -> Match[Entry]:
        """The longest beginning, in what is being read now, too."""
        tree = self._tree(how)
        for lease in self._leases:
            if (entry := lease.entry) is not None and entry.read_as == how:
                self._grow(entry)
        return tree.longest(wanted)

    def _grow(self, entry: Entry) -> None:
        """Know the tokens that an entry's context has read since."""
        assert entry.context is not None and entry.read_as is not None
        tokens, n = entry.context.tokens, len(entry.tokens)
        if len(tokens) == n or entry.context.has_failed_to_save:
            return
        entry.tokens = np.asarray(tokens, np.uint32)
        self._tree(entry.read_as).insert(entry.tokens, entry)

    def _source(self, match: Match[Entry]) -> Entry | None:
        """The entry to begin with."""
        if match.n_tokens < LEAST:
            return None
        if idle := [entry for entry in match.ending if entry.is_idle]:
            return max(idle, key=lambda entry: entry.used)
        return min(islice(match.entries(), _CANDIDATES), key=lambda entry: entry.depth)

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
            entry, parent = source, None
        else:
            entry = Entry(self._folder / secrets.token_hex(8), how, np.empty(0, np.uint32))
            parent = source
            self._room.take(entry, _FRESH_BYTES + _copied_bytes(parent))
            if parent is not None and parent.context is not None:
                parent.context.commit()
        try:
            above = None if parent is None else parent.path
            disk = Disk(entry.path, how.k, how.v, parent=above, n_shared=n_tokens)
            context = self._model.open(replace(request, store=disk))
            kept = context.cut_back(n_common(ids[:-1], context.tokens))
        except BaseException:
            if entry is not source:
                self._discard(entry.path)
            raise
        entry.context = context
        if entry is not source:
            self._entries[entry.path] = entry
            self._link(entry)
        self._touch(entry)
        context.save_within(partial(self._allow, entry), partial(self._save_failed, entry))
        return Lease(context, kept, entry)

    def _following(self, source: Entry, ids: Sequence[int], request: ContextRequest) -> Lease:
        """A lease whose new tokens stay in memory."""
        context = self._model.open(replace(request, store=Disk(source.path, read_only=True)))
        kept = context.cut_back(n_common(ids[:-1], context.tokens))
        source.n_readers += 1
        self._touch(source)
        return Lease(context, kept, reads=source)

    # Saving.

    def _allow(self, entry: Entry, n_bytes: int) -> None:
        self._room.take(entry, n_bytes)

    def _save_failed(self, entry: Entry, error: StoreError) -> None:
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
        store = context.store
        if lease.reads is not None:
            lease.reads.n_readers -= 1
        try:
            if entry is not None and not keep:
                context.save_within(_refuse, lambda error: None)
            context.close()
        except StoreError as error:
            self._tell(str(error))
        self._written += store.written_bytes
        if entry is not None:
            self._settle(entry, context.tokens, keep)

    def _settle(self, entry: Entry, tokens: Sequence[int], keep: bool) -> None:
        """Know what an entry holds that nothing writes to any more, or remove it."""
        entry.context = None
        assert entry.read_as is not None
        try:
            entry.tokens = tokens_of(entry.path)
        except PackError as error:
            self._lose(entry, error)
            return
        self._tree(entry.read_as).insert(entry.tokens, entry)
        entry.measure()
        self._touch(entry)
        if not entry.n_children and (not keep or self._is_superfluous(entry)):
            self._remove(entry)
        self._room.shrink(self._room.most_bytes)

    def _is_superfluous(self, entry: Entry) -> bool:
        """Whether another entry has all of its tokens, or there are few."""
        if len(entry.tokens) < LEAST_KEPT:
            return True
        assert entry.read_as is not None
        match = self._tree(entry.read_as).longest(entry.tokens)
        return any(other is not entry for other in islice(match.entries(), 2))

    # Entries.

    def _tree(self, how: ReadAs) -> TokenTree[Entry]:
        return self._trees.setdefault(how, TokenTree())

    def _touch(self, entry: Entry) -> None:
        self._clock = max(time.time(), self._clock + 1e-6)
        with suppress(OSError):
            entry.touch(self._clock)

    def _forget(self, entry: Entry) -> None:
        """Take an entry out of the library."""
        self._entries.pop(entry.path, None)
        if entry.read_as is not None:
            self._tree(entry.read_as).remove(entry)
        if entry.above is not None:
            entry.above.n_children -= 1
            entry.above = None

    def _remove(self, entry: Entry) -> None:
        """Take an entry out of the library, and remove its files."""
        self._forget(entry)
        with suppress(PackError, OSError):
            entry.remove()

    def _lose(self, entry: Entry, error: PackError) -> None:
        """Drop an entry that cannot be opened, and those that begin with it."""
        for other in [e for e in self._entries.values() if e.above is entry]:
            self._lose(other, error)
        if entry.context is None:
            self._forget(entry)
            if entry.is_ours:
                self._drop(entry.path, error)

    def _drop(self, path: Path, error: PackError) -> None:
        self._tell(f"{error}; it is removed, and its text read again when it is needed")
        self._discard(path)

    def _discard(self, path: Path) -> None:
        """Remove the files of what is no sound pack."""
        with suppress(PackError, OSError):
            remove_files(path)

    def _is_at_fault(self, source: Entry) -> bool:
        """Whether an entry cannot be opened."""
        try:
            tokens_of(source.path)
        except PackError:
            return True
        return False

    def _include(self, path: Path) -> Sequence[int]:
        path = path.resolve()
        if path not in self._entries:
            how = read_as(Manifest.read(path), self._model.info)
            tokens = tokens_of(path)
            if how is None:
                raise PackError(path, "contexts of this model cannot begin with it")
            entry = Entry(path, how, tokens, disk_bytes(path), is_ours=False)
            self._entries[path] = entry
            self._tree(how).insert(tokens, entry)
        return [int(token) for token in self._entries[path].tokens]

    def _close(self) -> None:
        for lease in list(self._leases):
            self._give_back(lease, True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _copied_bytes(parent: Entry | None) -> int:
    """The most bytes that a new pack copies from the one that it begins with."""
    if parent is None:
        return 0
    folder, n_bytes = PackFolder(parent.path), 0
    n_bytes += SEGMENT * folder.tail_row_bytes + 8 * folder.checkpoint_bytes
    n_bytes += 2 * folder.manifest.state_bytes
    above: Entry | None = parent if parent.depth >= MOST_DEPTH else None
    while above is not None and above.depth > MOST_DEPTH // 2:
        n_bytes, above = n_bytes + above.n_bytes, above.above
    return n_bytes


def _refuse(n_bytes: int) -> None:
    """For `KVStore.limit_saves`: nothing more is saved."""
    raise NoRoom("what is not kept is not saved")
