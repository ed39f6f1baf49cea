"""What a shard knows and answers: some segments of a pack, without a model."""

from __future__ import annotations

import threading
from pathlib import Path

from ...ops.attention.layout import SEGMENT
from ...ops.errors import OpsError
from ..engine import on_engine
from ..store.disk.errors import PackError
from ..store.disk.folder import PackFolder
from ..store.disk.format.log import KV
from ..store.disk.store import DiskStore
from .answers import Answers
from .frames import FrameError, Message
from .greeting import facts_of


class Shard:
    """Segments first … stop - 1 of the pack in `path`; stop None: up to the last full one.

    alone: nothing else in this process computes, and kernels run in one thread, so that any thread
    may run them, one at a time: an answer needs 50 µs less. Raises `PackError` for a pack that does
    not have the segments, or evicts.
    """

    def __init__(
        self, path: Path, first: int = 0, stop: int | None = None, *, alone: bool = False
    ) -> None:
        self._alone = threading.Lock() if alone else None
        folder = PackFolder(path)
        if folder.manifest.slots is not None:
            raise PackError(path, "it keeps some tokens only (--keep), which shards cannot serve")
        self._store = store = DiskStore(folder)
        found = f"--segments {first}:{'' if stop is None else stop}"
        n_full, n_tokens = store.saved_items(KV) // SEGMENT, len(store.saved.tokens)
        if not n_full:
            raise PackError(
                path,
                f"it has {n_tokens:,} tokens, fewer than a segment of {SEGMENT:,}: it needs no "
                "shards",
            )
        stop = n_full if stop is None else stop
        if not 0 <= first < stop <= n_full:
            raise PackError(
                path,
                f"it has {n_full:,} full segments of {SEGMENT:,} tokens (0:{n_full}), found "
                f"{found}",
            )
        self.facts = facts_of(store, first, stop)
        self._answers = Answers(store, self.facts, frozenset(folder.whole_layers), n_tokens)

    @property
    def n_bytes(self) -> int:
        """Bytes of K and V that it may read, which stay in files until then."""
        folder, n = self._store.folder, self.facts.stop - self.facts.first
        return n // SEGMENT * folder.layer_bytes * len(folder.whole_layers)

    def answer(self, question: Message) -> Message:
        """The answer to a question; `FrameError` for one that cannot be."""
        try:
            if self._alone is None:
                return on_engine(self._answers.answer, question)
            with self._alone:
                return self._answers.answer(question)
        except (OpsError, ValueError, TypeError, IndexError) as error:
            raise FrameError(f"a question that cannot be answered: {error}") from error
