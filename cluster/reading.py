"""Texts that are read into packs by workers on several machines.

The bytes of a text travel to a worker, which writes the pack on its machine: in the folder of the
same path, which machines may share. A text goes where most of its pack is.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..runtime.documents import text_of
from ..runtime.gguf import open_gguf
from ..runtime.loading.fingerprint import fingerprint
from ..runtime.store import PackError
from ..runtime.store.disk.contents import is_busy
from ..runtime.store.disk.info import pack_head
from ..system.errors import KvarnError
from ..system.reading import read_text
from .jobs import Job, JobBusy, NodeUnfit, Outcome, Placement
from .queue import Queue
from .worker import Task

if TYPE_CHECKING:
    from ..runtime.attend import Attend
    from ..runtime.context import Context, Progress
    from ..runtime.loading.adapter_files import AdapterFile
    from ..runtime.model import Model
    from ..runtime.packs.texts import PackOutcome, Text
    from ..runtime.prefill import Prefill

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors of a disk: another machine may read the text."""


@dataclass(frozen=True)
class ReaderConfig:
    """How texts are read, the same on all machines. folder: of the packs. model, lora: files that
    each machine has; the others: as in `build_packs`."""

    folder: Path
    model: Path
    lora: tuple[AdapterFile, ...] = ()
    n_ctx: int | None = None
    prefill: Prefill | None = None
    attend: Attend | None = None
    kv_type: tuple[str, str] | None = None

    def __call__(self, threads: int) -> Reader:
        return Reader(self, threads)


@dataclass(frozen=True)
class TextBytes:
    """A text that travels. file: where it came from."""

    name: str
    file: Path
    data: bytes


@dataclass(frozen=True)
class TextResult:
    """lines: what of a document could not be read."""

    outcome: PackOutcome
    lines: list[str]


@dataclass(frozen=True)
class NodeFacts:
    """Of a machine that reads: the digest of its model, and the tokens of each of its packs."""

    fingerprint: str
    pack_tokens: dict[str, int]


class Reader(Task):
    """Reads texts into packs. The model is loaded for the first text: that may take minutes."""

    def __init__(self, config: ReaderConfig, threads: int) -> None:
        self._config, self._threads = config, threads
        self._model: Model | None = None

    def facts(self) -> NodeFacts:
        """Packs that cannot be opened count as empty: whoever reads their texts says why. Raises
        `GGUFError` for a model that cannot be read, OSError."""
        pack_tokens = {}
        folder = self._config.folder
        for path in folder.iterdir() if folder.is_dir() else ():
            with suppress(PackError):
                pack_tokens[path.name] = pack_head(path).n_tokens
        with open_gguf(self._config.model) as file:
            return NodeFacts(fingerprint(file), pack_tokens)

    def load(self) -> Model:
        """Raises `NodeUnfit` where that fails."""
        from ..runtime.loading.load import load

        if self._model is None:
            config = self._config
            try:
                self._model = load(config.model, threads=self._threads, lora=config.lora)
            except KvarnError as error:
                raise NodeUnfit(str(error)) from error
        return self._model

    def run(self, work: TextBytes, progress: Callable[[int, int], None]) -> TextResult:
        """Raises `JobBusy` where another process is at the pack; `NodeUnfit` for a full disk, and
        where the model cannot be loaded."""
        from ..runtime.packs.texts import TextFile, build_packs

        class ReceivedText(TextFile):
            def __call__(self) -> str:
                return text_of(work.data, str(self.path), self.path.suffix, self.notice)

        def begin(path: Path, context: Context) -> Progress:
            n_before = len(context.tokens)
            progress(n_before, n_before)
            return lambda done, total: progress(n_before + done, n_before + total)

        config, lines = self._config, list[str]()
        pack = config.folder / work.name
        if is_busy(pack):
            raise JobBusy(f"another process writes to {pack}")
        axes = config.n_ctx, config.prefill, config.attend, config.kv_type
        texts: dict[str | Path, Text] = {pack: ReceivedText(work.file, lines.append)}
        (outcome,) = build_packs(self.load(), texts, *axes, begin, once=True)
        if isinstance(outcome.pack, KvarnError) and is_disk_error(outcome.pack):
            raise NodeUnfit(str(outcome.pack))
        return TextResult(outcome, lines)


def is_disk_error(error: BaseException | None) -> bool:
    """Whether the disk is at fault, so that another machine may read the text."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            return True
        error = error.__cause__
    return False


class HomeNodes(Placement):
    """A text goes to a node that has most of its pack; where none has any, to all. Nodes that share
    a folder have the same."""

    def __init__(self) -> None:
        self._facts: dict[str, NodeFacts] = {}

    def may_run(self, key: str, node: str, nodes: frozenset[str]) -> bool:
        most = max(self._n_tokens(key, one) for one in nodes)
        return self._n_tokens(key, node) == most

    def admit(self, node: str, facts: NodeFacts) -> None:
        for other, known in self._facts.items():
            if known.fingerprint != facts.fingerprint:
                raise KvarnError(
                    f"its model is another one than on {other}: fingerprint {facts.fingerprint}, "
                    f"expected {known.fingerprint}"
                )
        self._facts[node] = facts

    def record_death(self, key: str, node: str, done: int) -> None:
        """Its pack has about so much, until the next worker of the node tells."""
        facts = self._facts[node]
        n_tokens = max(done, self._n_tokens(key, node))  # it may have died before it could tell
        self._facts[node] = replace(facts, pack_tokens={**facts.pack_tokens, key: n_tokens})

    def _n_tokens(self, key: str, node: str) -> int:
        facts = self._facts.get(node)
        return 0 if facts is None else facts.pack_tokens.get(key, 0)


def read_texts(queue: Queue, files: Mapping[str, Path]) -> Iterator[Outcome]:
    """Read each file into the pack of its name; yields outcomes whose result is a `TextResult`, or
    a `KvarnError`.

    queue: of workers that `ReaderConfig` makes, placed by `HomeNodes`. Raises `KvarnError` where no
    worker is left, OSError for a file that is gone.
    """
    queue.gather()

    def text_bytes(name: str) -> TextBytes:
        return TextBytes(name, files[name], read_text(files[name]))

    # The longest first: reading takes longer than linear, and the last should not be a long one.
    longest = sorted(files, key=lambda name: -files[name].stat().st_size)
    return queue.run([Job(name, partial(text_bytes, name)) for name in longest])
