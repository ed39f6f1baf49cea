"""The packs in the library's folder: found after a restart, dropped where they are damaged."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...store import PackError
from ...store.disk.contents import is_half_removed, remove_files
from ...store.disk.errors import PackDamaged
from ...store.disk.format.manifest import NAME, Manifest
from ...store.disk.models import check_model
from .entry import Entry, KVKey, disk_bytes, kv_key_of, tokens_of, version_of
from .tree import TokenTree, as_tokens

if TYPE_CHECKING:
    from ....ops.arrays import U32
    from ...loading.model_info import ModelInfo
    from ...store.disk.format.manifest import Parent
    from .tree import Match


LEAST = 16
"""Tokens that a beginning must have to be worth a pack that begins with it."""
LEAST_KEPT = 64
"""Tokens that an entry must have to be kept: fewer are read in no time."""
_CANDIDATES = 64
EMPTY = np.empty(0, np.uint32)
"""The tokens of an entry whose tokens are not known yet."""


def best_entry(match: Match[Entry]) -> Entry | None:
    """The entry to begin with: one that ends there and can be gone on with, or else one in a short
    chain; None if none has enough."""
    if match.n_tokens < LEAST:
        return None
    if idle := [entry for entry in match.ending if entry.is_idle]:
        return max(idle, key=lambda entry: entry.used)
    return min(islice(match.entries(), _CANDIDATES), key=lambda entry: entry.depth)


class Catalogue:
    """Entries by their paths, and those that the model can use by their tokens.

    After a restart, `load` opens no pack but reads its manifest; tokens are read when the first
    prompt asks for them (0.3 ms for each pack, and 5 ms more for each 100,000 tokens).
    """

    def __init__(self, model: ModelInfo, tell: Callable[[str], None]) -> None:
        self._model, self._tell = model, tell
        self.entries: dict[Path, Entry] = {}
        self._trees: dict[KVKey, TokenTree[Entry]] = {}
        self._unread: list[Entry] = []
        self._clock = 0.0

    def load(self, folder: Path) -> None:
        """Add the packs of a folder. Damaged ones, and those that a killed process has begun to
        make or to remove, are removed."""
        for path in sorted(path for path in folder.iterdir() if path.is_dir()):
            with suppress(OSError):
                self._load(path)
        self._unread = list(self.entries.values())
        for entry in list(self.entries.values()):
            self.link(entry)

    def _load(self, path: Path) -> None:
        if not (path / NAME).exists():
            self.discard(path)
            return
        try:
            manifest = Manifest.read(path)
            if is_half_removed(path, manifest):
                self.discard(path)
                return
            how = kv_key_of(path, manifest, self._model)
        except PackDamaged as error:
            self._discard_damaged(path, error)
            return
        except PackError:
            how = None  # of another version of kvarn
        entry = Entry(path, how, EMPTY, used=path.stat().st_mtime)
        entry.measure()
        self.entries[path] = entry

    def link(self, entry: Entry) -> None:
        """Find the entry that one begins with. One whose parent is gone is of no use: it goes when
        room is needed."""
        try:
            parent = Manifest.read(entry.path).parent
        except PackError:
            return
        if parent is None:
            return
        place = parent.folder(entry.path)
        above = self.entries.get(place) or self._user_entry(parent, place)
        if above is None:
            entry.kv_key = None
            return
        entry.parent = above
        above.n_children += 1

    def _user_entry(self, parent: Parent, path: Path) -> Entry | None:
        """The user's pack that an entry begins with, whose tokens are read when they are wanted;
        None if it is not there any more."""
        try:
            manifest = Manifest.read(path)
        except PackError:
            return None
        if manifest.id != parent.id:
            return None
        how = kv_key_of(path, manifest, self._model)
        entry = Entry(path, how, EMPTY, is_managed=False)
        self.entries[path] = entry
        self._unread.append(entry)
        return entry

    def tree(self, how: KVKey) -> TokenTree[Entry]:
        """The entries that were read in one way."""
        while self._unread:
            entry = self._unread.pop()
            if self.entries.get(entry.path) is entry and entry.kv_key is not None:
                try:
                    self.set_tokens(entry, tokens_of(entry.path))
                except PackError as error:
                    self.invalidate(entry, error)
        return self._trees.setdefault(how, TokenTree())

    def set_tokens(self, entry: Entry, tokens: Sequence[int] | U32) -> None:
        """Set the tokens of an entry, by which it is found."""
        entry.tokens = tokens if isinstance(tokens, np.ndarray) else as_tokens(tokens)
        if entry.kv_key is not None:
            self._trees.setdefault(entry.kv_key, TokenTree()).insert(entry.tokens, entry)

    def is_redundant(self, entry: Entry) -> bool:
        """Whether another entry has all of its tokens, or there are few."""
        if len(entry.tokens) < LEAST_KEPT or entry.kv_key is None:
            return True
        match = self.tree(entry.kv_key).longest(entry.tokens)
        return any(other is not entry for other in islice(match.entries(), 2))

    def include(self, path: Path) -> Entry:
        """Add a pack of the user's; `PackError` if contexts of the model cannot begin with it."""
        path = path.resolve()
        version, entry = version_of(path), self.entries.get(path)
        if entry is not None and version == entry.version:
            return entry
        if entry is not None and entry.version is not None and version[0] != entry.version[0]:
            self.invalidate(entry, PackError(path, "it is another pack now"))
            self.entries.pop(path, None)
            entry = None
        if entry is None:
            entry = Entry(
                path, kv_key_of(path, Manifest.read(path), self._model), EMPTY, is_managed=False
            )
        if entry.kv_key is None:
            check_model(path, Manifest.read(path).model, self._model)
            raise PackError(path, "contexts of this model cannot begin with it")
        self.set_tokens(entry, tokens_of(path))
        entry.n_bytes, entry.version = disk_bytes(path), version
        self.entries[path] = entry
        return entry

    def touch(self, entry: Entry) -> None:
        """Mark the entry as used now."""
        self._clock = max(time.time(), self._clock + 1e-6)
        with suppress(OSError):
            entry.touch(self._clock)

    def remove(self, entry: Entry) -> None:
        """Take an entry out, and remove its files."""
        self._forget(entry)
        with suppress(PackError, OSError):
            entry.remove()

    def invalidate(self, entry: Entry, error: PackError) -> None:
        """Begin nothing with an entry that cannot be opened, nor with those that begin with it, and
        remove those that no context uses."""
        for other in [other for other in self.entries.values() if other.parent is entry]:
            self.invalidate(other, error)
        if entry.kv_key is not None:
            self._trees.setdefault(entry.kv_key, TokenTree()).remove(entry)
            entry.kv_key = None
        if entry.context is not None or entry.n_children or entry.n_readers:
            return
        self._forget(entry)
        if entry.is_managed:
            self._discard_damaged(entry.path, error)

    def _forget(self, entry: Entry) -> None:
        self.entries.pop(entry.path, None)
        if entry.kv_key is not None:
            self._trees.setdefault(entry.kv_key, TokenTree()).remove(entry)
        if entry.parent is not None:
            entry.parent.n_children -= 1
            entry.parent = None

    def _discard_damaged(self, path: Path, error: PackError) -> None:
        self._tell(f"{error}; it is removed, and its text read again when it is needed")
        self.discard(path)

    def discard(self, path: Path) -> None:
        """Remove the files of what is no sound pack."""
        with suppress(PackError, OSError):
            remove_files(path)
