"""The packs of one machine, which a question travels to.

Each worker looks into the folders of its machine, and says how well the question fits a pack, and
what a pack answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..ops.arrays import F64
from ..runtime.context.planning.request import ContextRequest
from ..runtime.loading.adapter_files import adapter_files
from ..runtime.packs.links import model_of
from ..runtime.packs.notes import finished_packs
from ..runtime.store import Disk
from ..runtime.store.disk.format.manifest import Manifest
from ..runtime.store.disk.info import pack_head
from ..runtime.store.facts import PackHead
from ..system.errors import KvarnError
from .jobs import NodeUnfit
from .worker import Task

if TYPE_CHECKING:
    from ..runtime.context import Context
    from ..runtime.model import Model
    from ..runtime.packs.asking import Answer

Wants = Literal["counts", "gain", "answer"]


@dataclass(frozen=True)
class ShelfConfig:
    """The question to packs and how they are asked, the same on all machines.

    folders: of packs, of the same paths everywhere. request: the context after a pack, whose store
    is one. model: its file, None: where each pack says. sampling: see `Sampler`. The others: as in
    `Asker`.
    """

    folders: tuple[Path, ...]
    request: ContextRequest
    question: str
    model: Path | None = None
    sampling: Mapping[str, Any] | None = None
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    system: str | None = None
    passages: int = 0

    def __call__(self, threads: int) -> Shelf:
        return Shelf(self, threads)


@dataclass(frozen=True)
class NodePack:
    """A pack on a machine. id: the same in copies, and where machines share a folder."""

    path: Path
    id: str
    head: PackHead


@dataclass(frozen=True)
class ShelfJob:
    """What a worker is to do with packs of its machine."""

    wants: Wants
    ids: list[str]


@dataclass(frozen=True)
class ShelfFacts:
    """Of a machine: its finished packs, and lines about the others."""

    packs: list[NodePack]
    lines: list[str]


class Shelf(Task):
    """The packs of a machine. The model is loaded for the first question."""

    def __init__(self, config: ShelfConfig, threads: int) -> None:
        self._config, self._threads = config, threads
        self._model: Model | None = None
        self._paths: dict[str, Path] = {}  # of packs, by their ids

    def facts(self) -> ShelfFacts:
        """Raises `PackError` for a pack that cannot be opened."""
        packs, lines = list[NodePack](), list[str]()
        for folder in self._config.folders:
            try:
                paths = finished_packs(folder, lines.append)
            except KvarnError as error:  # another machine may have some
                lines.append(str(error))
            else:
                packs += [NodePack(path, Manifest.read(path).id, pack_head(path)) for path in paths]
        self._paths = {pack.id: pack.path for pack in packs}
        return ShelfFacts(packs, lines)

    def run(self, work: ShelfJob, progress: Callable[[int, int], None]) -> Any:
        """Counts of words: those of all packs. Gains and answers: that of the only one."""
        paths = [self._paths[id] for id in work.ids]
        if work.wants == "counts":
            return self._counts(paths)
        (path,) = paths
        return self._gain(path) if work.wants == "gain" else self._answer(path)

    def _counts(self, paths: Sequence[Path]) -> tuple[F64, F64]:
        from ..runtime.packs.ranking import word_counts

        return word_counts(self._config.question, paths, self._load(paths[0]).tokenizer)

    def _gain(self, path: Path) -> float:
        from ..runtime.packs.ranking import fits_of

        (fit,) = fits_of(self._load(path), [self._request(path)], self._config.question)
        return fit.gain

    def _answer(self, path: Path) -> Answer:
        from ..runtime.packs.asking import Asker

        config, model = self._config, self._load(path)

        @contextmanager
        def indexed(request: ContextRequest) -> Iterator[Context]:
            with model.open(request) as context:
                context.index()
                yield context

        sampler = model.sampler(**(config.sampling or {}))
        how = config.max_tokens, config.stop, config.system, config.passages
        return Asker(indexed, sampler, *how).answer(self._request(path), config.question)

    def _request(self, path: Path) -> ContextRequest:
        store = self._config.request.store
        store = replace(store, path=path) if isinstance(store, Disk) else Disk(path, read_only=True)
        return replace(self._config.request, store=store)

    def _load(self, path: Path) -> Model:
        """The model of a pack, which is that of all. Raises `NodeUnfit` where it is not here."""
        from ..runtime.loading.load import load

        if self._model is None:
            head = pack_head(path)
            file = self._config.model or model_of(head)
            if file is None or not file.is_file():
                raise NodeUnfit(
                    f"the model of its packs, {head.model}, is not at "
                    f"{file or head.model_path or 'any known place'}: copy it there, or name its "
                    "place with -m"
                )
            lora = adapter_files(head.adapters)
            self._model = load(file, threads=self._threads, lora=lora)
        return self._model
