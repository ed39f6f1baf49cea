"""A pack's folder: its files, each opened once, and the state of its last commit.

NAME/
  pack.json         what it was made with (manifest.py)
  centre            mean keys, if keys are stored without them (centre.py)
  commits           two superblocks (superblock.py)
  tokens            log of full segments with their token ids (log.py)
  tail-N            tokens of the open segment (tail.py)
  layer-000.kv …    full segments of K and V, one file per layer, one slot each
  checkpoints       last tokens of some segments in layers with a window, which have no file of
                    their own (checkpoints.py)
  states            copies of what layers carry besides K and V (states.py)
  index-NAME        full segments of a column, [layer][kv head][token] in each slot
  lock              held by the one writer
  conversation.json messages, if it is a chat session (chat/session.py)

A context that evicts has `pack.json`, `lock` and `snapshot` (snapshot.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from ....ops.arrays import F32, U8, U32
from ....ops.attention.layout import SEGMENT, TileLayout, layout_of, n_segments
from ....ops.errors import OpsError
from ....system.text import one_line
from ...token_ids import TokenIds
from ..base import Saved
from ..rows import Rows
from . import files
from .contents import take_lock
from .errors import PackDamaged, PackError
from .format import centre, checkpoints, log, superblock, tail
from .format.checkpoints import Checkpoint
from .format.log import KV, Tables
from .format.manifest import Manifest
from .format.superblock import Commit, Tail
from .pack_files import PackFiles

SLOT_ALIGNMENT = 1 << 16  # bytes; slots can be mapped whatever the size of a page (4 to 64 KiB)
MOST_PARENTS = 16
T = TypeVar("T")
_ATTEMPTS = 20  # to read a commit that a writer replaces


def stride_of(n_bytes: int) -> int:
    """Bytes from one slot to the next in a file with `n_bytes` in each."""
    return -(-n_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


@dataclass(frozen=True)
class State:
    """The state of a commit: full segments, the tokens after them, the last hidden state.

    recent: rows of the last tokens of the full segments in layers with a window, which a context
    that goes on needs; empty unless asked for.
    """

    commit: Commit
    tables: Tables
    rows: U8
    """uint8 (tokens after the full segments, bytes of a row)."""
    tokens: TokenIds
    hidden: F32 | None
    recent: U8

    @property
    def n_full(self) -> int:
        return len(self.tables.places[KV])

    @property
    def saved(self) -> Saved:
        """What a context goes on from."""
        return Saved(self.tokens, self.hidden, self.commit.n_prompt, self.commit.n_apart)


class PackFolder(PackFiles):
    """An existing pack. Raises `PackError` if there is none that this version of kvarn reads."""

    def __init__(self, path: Path, writable: bool = False, depth: int = 0) -> None:
        super().__init__(path, writable)
        self._lock: int | None = None
        self.manifest = Manifest.read(path)
        model = self.manifest.model
        self.layout = self._layout(model.head_dim)
        self.layer_bytes = self.layout.segment_bytes(model.n_kv_heads)
        windows = self.manifest.windows
        self._window = max(windows, default=0)
        self.windowed_layers = tuple(i for i, window in enumerate(windows) if window)
        windowed = set(self.windowed_layers)
        self.whole_layers = tuple(i for i in range(model.n_layers) if i not in windowed)
        self.rows = Rows(self.layout, len(self.whole_layers), model.n_kv_heads)
        self.in_windows = self.layout, model.n_kv_heads
        """Layout and KV heads of the layers with a window."""
        if windowed:
            n_kv_heads, head_dim = model.heads_of(self.windowed_layers[0])
            self.in_windows = self._layout(head_dim), n_kv_heads
        layout, n_kv_heads = self.in_windows
        self.windowed_rows = Rows(layout, len(self.windowed_layers), n_kv_heads)
        self.parent: PackFolder | None = None
        try:
            if writable:
                self._lock = take_lock(path)
            if self.manifest.parent is not None:
                self.parent = self._open_parent(depth)
        except BaseException:
            self.close()
            raise

    def _layout(self, head_dim: int) -> TileLayout:
        facts = self.manifest
        try:
            return layout_of(head_dim, facts.k_type, facts.v_type)
        except OpsError as error:
            raise PackError(self.path, f"it is for another kvarn: {error}") from error

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the files and release the lock; what is mapped stays mapped."""
        super().close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def names(self, plane: str) -> list[str]:
        """The files of K and V (`log.KV`) or of a column."""
        if plane == KV:
            return [f"layer-{i:03}.kv" for i in self.whole_layers]
        return [f"index-{plane}"]

    def part_bytes(self, plane: str, item_bytes: int = 0) -> int:
        """Bytes of a segment in one file of a plane."""
        model = self.manifest.model
        if plane == KV:
            return self.layer_bytes
        return model.n_layers * model.n_kv_heads * SEGMENT * item_bytes

    @property
    def tail_row_bytes(self) -> int:
        """Bytes of a token in the tail log."""
        return self.rows.n_bytes + self.windowed_rows.n_bytes

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a slot of `checkpoints`."""
        return min(self._window, SEGMENT) * self.windowed_rows.n_bytes

    def read_checkpoint(self, checkpoint: Checkpoint) -> bytes:
        """The bytes of a checkpoint; `PackDamaged` if they are not as written."""
        size, digest = self.checkpoint_bytes, bytes.fromhex(checkpoint.digest)
        return self.read_slot(checkpoints.NAME, checkpoint.slot, size, digest, size)

    def read_end(self, named: Mapping[int, Checkpoint], segment: int) -> bytes:
        """The bytes of one of them; `PackDamaged` if it lacks, too."""
        if segment not in named:
            lacks = f"lacks the last tokens of segment {segment} in layers with a window"
            raise PackDamaged(self.path, f"{superblock.NAME} {lacks}")
        return self.read_checkpoint(named[segment])

    def read_recent(self, named: Mapping[int, Checkpoint], n_full: int) -> U8:
        """Rows of the last tokens of `n_full` full segments, as far as a window reaches, of the
        layers that have one; `PackDamaged` if checkpoints lack or are not as written."""
        data = []
        for segment in range(max(0, n_full - n_segments(self._window)), n_full):
            data.append(self.read_end(named, segment))
        shape = len(data) * min(self._window, SEGMENT), self.windowed_rows.n_bytes
        return np.frombuffer(b"".join(data), np.uint8).reshape(shape)

    def centre(self) -> F32 | None:
        """The mean keys, float32 (layers, J, E); None if keys are stored whole."""
        if not self.manifest.centre:
            return None
        data = self.read(centre.NAME, centre.n_bytes(self.manifest))
        return centre.decode(data, self.manifest, self.path)

    def superblocks(self) -> list[bytes]:
        """The bytes of both slots."""
        size = superblock.slot_bytes(self.manifest.model.n_embd)
        return [files.read_at(self.fd(superblock.NAME), size, i * size) for i in range(2)]

    def commits(self) -> list[tuple[Commit, F32 | None]]:
        """The sound commits, the newest first; `PackDamaged` if none is."""
        n_embd = self.manifest.model.n_embd
        decoded = [superblock.decode(data, n_embd) for data in self.superblocks()]
        sound = [commit for commit in decoded if commit is not None]
        if not sound:
            raise PackDamaged(self.path, "neither of its two superblocks is sound")
        return sorted(sound, key=lambda pair: pair[0].sequence, reverse=True)

    def last_commit(self) -> Commit:
        """The newest sound commit; raises what `commits` raises."""
        return self.commits()[0][0]

    def state(self, recent: bool = False) -> State:
        """The last commit's state; a reader sees a whole commit, even while a writer works.

        recent: whether `State.recent` is read, too. Raises `PackDamaged` if no commit is sound, or
        data of the newest sound one is missing.
        """
        return self._newest(lambda commit, hidden: self._state(commit, hidden, recent))

    def token_ids(self) -> U32:
        """The ids of the last commit's tokens, without a number of Python for each. Raises what
        `state` raises."""

        def read(commit: Commit, hidden: F32 | None) -> U32:
            tables = self._full(commit)
            _, last = self.read_tail(commit.tail, commit.n_tokens)
            ids = np.frombuffer(b"".join(tables.tokens), "<u4")
            return np.concatenate([ids, np.asarray(last, np.uint32)])

        return self._newest(read)

    def _newest(self, read: Callable[[Commit, F32 | None], T]) -> T:
        attempt = 1
        while True:
            newest, hidden = self.commits()[0]
            try:
                return read(newest, hidden)
            except PackDamaged:
                # A writer may have made new commits since this one was read.
                if self.writable or attempt == _ATTEMPTS or self.last_commit() == newest:
                    raise
                attempt += 1
                time.sleep(0.001)

    def _full(self, commit: Commit) -> Tables:
        """The full segments of a commit."""
        tables = self._tables(commit.log_bytes, commit.log_chain)
        n_full = commit.n_tokens // SEGMENT
        if n_full > len(tables.tokens):
            raise PackDamaged(self.path, f"{log.NAME} lacks segments of the last commit")
        tables.cut(n_full)
        return tables

    def _state(self, commit: Commit, hidden: F32 | None, recent: bool) -> State:
        tables = self._full(commit)
        n_full = commit.n_tokens // SEGMENT
        rows, last = self.read_tail(commit.tail, commit.n_tokens)
        ids = TokenIds()
        for part in tables.tokens:
            ids.frombytes(part)
        tables.tokens.clear()
        ids.extend(last)
        named = {c.segment: c for c in commit.checkpoints}
        before = self.read_recent(named, n_full if recent else 0)
        return State(commit, tables, rows, ids, hidden, before)

    def read_tail(self, place: Tail, n_tokens: int) -> tuple[U8, list[int]]:
        """Rows and ids of the tokens of the open segment of a commit with so many tokens in all;
        `PackDamaged` if they are not as written."""
        data, chain, n_open = b"", b"", n_tokens % SEGMENT
        if n_open:
            # A writer removes such files, and uses their names again.
            name = tail.file_name(place.epoch)
            data = self.read(name, place.n_bytes, anew=not self.writable)
            chain = bytes.fromhex(place.chain)
        base = n_tokens - n_open
        return tail.decode(data, self.tail_row_bytes, base, n_open, chain, self.path)

    def _tables(self, log_bytes: int, chain: str) -> Tables:
        tables = Tables()
        inherited = self.manifest.parent
        if self.parent is not None and inherited is not None:
            tables = self.parent._tables(inherited.log_bytes, inherited.log_chain).for_child()
            tables.cut(inherited.n_segments)
        data = memoryview(self.read(log.NAME, log_bytes))
        log.replay(data, bytes.fromhex(chain), tables, self, len(self.names(KV)))
        return tables

    def _open_parent(self, depth: int) -> PackFolder:
        expected = self.manifest.parent
        assert expected is not None
        path = expected.folder(self.path)
        if depth >= MOST_PARENTS:
            raise PackError(self.path, f"it has more than {MOST_PARENTS - 1} parents above it")
        try:
            parent = PackFolder(path, depth=depth + 1)
        except PackError as error:
            if depth:  # one level of explanation is enough
                raise
            raise PackError(self.path, f"its parent cannot be opened: {error}") from error
        if parent.manifest.id != expected.id:
            raise PackError(
                self.path,
                f"its parent {one_line(str(path))} is pack {one_line(parent.manifest.id)}, "
                f"expected {one_line(expected.id)}",
            )
        return parent
