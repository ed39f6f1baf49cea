"""Digests of the beginnings of texts: by them a proxy finds the server that has read most of a
prompt (`kvarn route`), without knowing the tokenizer, the chat template or any text."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from ...home import pack_path
from ...packs.pack import all_packs
from ...store import PackError
from ...store.disk.info import pack_head, pack_ids

if TYPE_CHECKING:
    from ....ops.arrays import U32
    from ...model import Model
    from ..library import Library

STEP = 1024
"""Tokens from one digest to the next."""


def digests_of(ids: U32, model: str) -> list[str]:
    """XXH3 (64 bits) of the first 1,024, 2,048, … ids as little-endian u32, after the model's
    fingerprint: what one model has read is of no use to another."""
    state, digests = xxhash.xxh3_64(model.encode()), []
    data = ids.astype("<u4", copy=False).tobytes()
    for start in range(0, len(ids) // STEP * STEP, STEP):
        state.update(data[4 * start : 4 * (start + STEP)])
        digests.append(state.hexdigest())
    return digests


class Beginnings:
    """What a server has read: its library, and the user's packs. Any thread may call it."""

    def __init__(self, model: Model, library: Library) -> None:
        self.model = model.info.fingerprint
        self._library, self._lock = library, threading.Lock()
        self._known: dict[Path, tuple[int, list[str]]] = {}

    def all_digests(self) -> list[str]:
        """The digests of all, in no order."""
        held: set[str] = set()
        texts = self._library.texts()
        users = [path for path in all_packs() if path == pack_path(path.name)]
        for path in {*texts, *users}:
            ids = texts.get(path)
            with suppress(PackError):  # it may be damaged, or removed meanwhile
                if ids is not None and len(ids):
                    held.update(digests_of(ids, self.model))
                else:
                    held.update(self._of_pack(path))
        return sorted(held)

    def _of_pack(self, path: Path) -> list[str]:
        head = pack_head(path)
        if head.fingerprint != self.model:
            return []
        with self._lock:
            n_tokens, digests = self._known.get(path, (0, []))
            if n_tokens != head.n_tokens:
                digests = digests_of(pack_ids(path), self.model)
                self._known[path] = head.n_tokens, digests
            return digests

    def of_prompt(self, ids: list[int], pack: Path | None) -> list[str]:
        """Those of a prompt, which follows a pack."""
        before = np.empty(0, np.uint32) if pack is None else pack_ids(pack)
        return digests_of(np.concatenate([before, np.asarray(ids, np.uint32)]), self.model)
