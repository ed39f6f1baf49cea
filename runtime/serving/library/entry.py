"""One text of the library: a pack, and what is known of it without opening it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...store import PackError
from ...store.disk.contents import remove_files, take_lock
from ...store.disk.errors import PackDamaged
from ...store.disk.folder import MOST_PARENTS, PackFolder
from ...store.disk.format.manifest import Manifest
from ...store.disk.models import facts_of
from ...store.disk.parents import MOST_DEPTH, max_copied_bytes

if TYPE_CHECKING:
    from ....ops.arrays import U32
    from ...context import Context
    from ...loading.model_info import ModelInfo
    from ...store.facts import PrefillFacts

BLOCK = 4096
"""Bytes of a folder on disk, at least."""


@dataclass(frozen=True)
class KVKey:
    """What K and V of one model depend on beside the tokens: their types, how prompts are read,
    and which factors positions are rotated by.

    prefills: how the first tokens were read, and how those that followed, in their order.
    """

    k: str
    v: str
    prefills: tuple[PrefillFacts | None, ...]
    long_rope: bool

    def followed_by(self, facts: PrefillFacts | None) -> KVKey:
        """The same, followed by tokens that are read in this way."""
        if self.prefills[-1] == facts:
            return self
        return replace(self, prefills=(*self.prefills, facts))


@dataclass(eq=False)
class Entry:
    """A pack in the library's folder, or one of the user's that it may begin contexts with.

    kv_key: None if this model cannot use it. n_bytes: on disk, at most. used: when, a number that
    grows. parent: the entry that it begins with; n_children: entries that begin with this one.
    context: what writes to it now. n_readers: contexts that read it without writing. is_managed: it
    may be removed. version: of a pack of the user's, when its tokens were read, see `version_of`.
    """

    path: Path
    kv_key: KVKey | None
    tokens: U32
    n_bytes: int = 0
    used: float = 0.0
    parent: Entry | None = None
    n_children: int = 0
    n_readers: int = 0
    context: Context | None = field(default=None, repr=False)
    is_managed: bool = True
    version: tuple[str, int] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether a request can go on in it."""
        return self.is_managed and self.context is None

    @property
    def is_removable(self) -> bool:
        """Whether nothing needs it, so that it can be removed."""
        return self.is_idle and not self.n_children and not self.n_readers

    @property
    def depth(self) -> int:
        """How many packs it begins with."""
        return 0 if self.parent is None else 1 + self.parent.depth

    def find_culprit(self, error: PackError) -> Entry | None:
        """This entry, or the one that it begins with, that cannot be used because of an error; None
        if the error has another cause."""
        if isinstance(error, PackDamaged):
            entry: Entry | None = self
            while entry is not None and entry.path != error.path:
                entry = entry.parent
            if entry is not None:
                return entry
        try:
            tokens_of(self.path)
        except PackError:
            return self
        return None

    @property
    def max_copied_bytes(self) -> int:
        """The most bytes that a new pack which begins with it copies."""
        n_bytes, above = max_copied_bytes(PackFolder(self.path)), self
        if self.depth < MOST_DEPTH:
            return n_bytes
        while above.parent is not None and above.depth > MOST_DEPTH // 2:
            n_bytes, above = n_bytes + above.n_bytes, above.parent
        return n_bytes

    def touch(self, now: float) -> None:
        """Mark the entry and its parents as used now, also for later processes."""
        self.used = now
        if self.is_managed:
            os.utime(self.path, (now, now))
        if self.parent is not None:
            self.parent.touch(now)

    def measure(self) -> None:
        """Read its bytes on disk from the system."""
        self.n_bytes = disk_bytes(self.path)

    def remove(self) -> None:
        """Remove its files; `PackError` if another process writes to it, OSError."""
        lock = take_lock(self.path)
        try:
            remove_files(self.path)
        finally:
            os.close(lock)


def disk_bytes(folder: Path) -> int:
    """Bytes that a folder of files takes on disk."""
    with os.scandir(folder) as files:
        return BLOCK + sum(file.stat(follow_symlinks=False).st_blocks * 512 for file in files)


def kv_key_of(path: Path, manifest: Manifest, model: ModelInfo) -> KVKey | None:
    """How a pack's tokens were read, with those that it begins with; None if contexts of this model
    cannot begin with them."""
    facts = facts_of(model)
    same = manifest.model.same_model(facts) and manifest.model.tokenizer == facts.tokenizer
    prefills, above = [manifest.prefill], manifest.parent
    while above is not None and len(prefills) <= MOST_PARENTS:
        path = above.folder(path)
        try:
            parent = Manifest.read(path)
        except PackError:
            return None
        prefills.append(parent.prefill)
        above = parent.parent
    in_blocks = any(prefill is not None and prefill.size for prefill in prefills)
    if not same or above is not None or manifest.slots is not None or in_blocks:
        return None
    how = KVKey(manifest.k_type, manifest.v_type, (prefills[-1],), manifest.long_rope)
    for prefill in reversed(prefills[:-1]):
        how = how.followed_by(prefill)
    return how


def tokens_of(path: Path) -> U32:
    """The tokens of a pack's last commit; `PackError` if it cannot be opened."""
    folder = PackFolder(path)
    try:
        return folder.token_ids()
    except OSError as error:
        raise PackError(path, f"cannot be read: {error.strerror or error}") from error
    finally:
        folder.close()


def version_of(path: Path) -> tuple[str, int]:
    """A pack's id and the number of its last commit; `PackError` if it cannot be opened."""
    folder = PackFolder(path)
    try:
        return folder.manifest.id, folder.last_commit().sequence
    finally:
        folder.close()
