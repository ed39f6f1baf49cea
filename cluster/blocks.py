"""One text, whose blocks workers on several machines read into one pack.

The pack is in a folder that all of them share. The machine of the command makes a file in it, the
mark: a worker that does not see it writes to another folder of that name, and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ..runtime.prefill import BlocksPrefill
from ..runtime.store import Disk, PackBusy, PackError
from ..system.errors import KvarnError
from .jobs import Job, JobBusy, NodeUnfit, Outcome
from .queue import Queue
from .reading import HomeNodes, NodeFacts, Reader, ReaderConfig, is_disk_error
from .worker import Task

if TYPE_CHECKING:
    from ..runtime.context import Context, Progress

FIRST, REST = "the first tokens", "the rest"
"""Jobs before all blocks, and after them; a job between them has the name of a block."""


@dataclass(frozen=True)
class BlockReaderConfig:
    """How one text is read, the same on all machines. name: of the pack, in the folder of `how`;
    mark: of the file that is in that folder, too."""

    how: ReaderConfig
    name: str
    text: str
    prefill: BlocksPrefill
    mark: str

    def __call__(self, threads: int) -> BlockReader:
        return BlockReader(self, threads)


class AnyNode(HomeNodes):
    """A block may go on on each node: they share the folder."""

    def record_death(self, key: str, node: str, done: int) -> None:
        """What was read of it is where all nodes find it."""


class BlockReader(Task):
    """Reads blocks of one text. The model is loaded, and the text encoded, for the first."""

    def __init__(self, config: BlockReaderConfig, threads: int) -> None:
        self._config, self._reader = config, Reader(config.how, threads)
        self._text: str | Sequence[int] = config.text

    def facts(self) -> NodeFacts:
        """Raises `KvarnError` without the mark, and what `Reader.facts` raises."""
        folder = self._config.how.folder
        if not (folder / self._config.mark).exists():
            raise KvarnError(
                f"its {folder} is not that of the machine of this command: expected a folder that "
                "all machines share"
            )
        return replace(self._reader.facts(), pack_tokens={})

    def run(self, work: str, progress: Callable[[int, int], None]) -> tuple[list[str], int]:
        """The names of all blocks, and how many tokens were read. Raises as `Reader.run`."""
        try:
            return self._read(work, progress)
        except PackBusy as error:
            raise JobBusy(str(error)) from error
        except PackError as error:
            if is_disk_error(error):
                raise NodeUnfit(str(error)) from error
            raise

    def _read(self, work: str, progress: Callable[[int, int], None]) -> tuple[list[str], int]:
        from ..runtime.packs.blocks import TextBlocks, build_pack_in_blocks
        from ..runtime.packs.pack import index_pack

        model, how, first = self._reader.load(), self._config.how, 0
        pack = how.folder / self._config.name

        def begin(name: str, context: Context) -> Progress:
            n_before = len(context.tokens) - first
            progress(n_before, n_before)
            return lambda done, total: progress(n_before + done, n_before + total)

        axes = self._config.prefill, how.n_ctx, begin
        blocks = TextBlocks(model, Disk(pack, *(how.kv_type or ())), self._text, *axes)
        self._text = blocks.ids
        if work == REST:
            _, n_read = build_pack_in_blocks(model, blocks.disk, blocks.ids, *axes)
            if how.attend is not None and how.attend.selects:
                index_pack(model, pack, how.attend, how.n_ctx)
            return [], n_read
        with blocks.parts() as parts:
            if work in parts:  # else these are the first tokens, or it was joined
                first = parts[work].first
                if not blocks.read_part(parts[work]):
                    raise PackBusy(pack)
            return list(parts), blocks.n_read


def read_blocks(queue: Queue) -> Iterator[Outcome]:
    """Read the text; yields outcomes whose result is that of `BlockReader.run`.

    queue: of workers that `BlockReaderConfig` makes, placed by `AnyNode`. Raises `KvarnError` where
    no worker is left, and for a block that cannot be read.
    """
    names: list[str] = []
    for keys in ([FIRST], names, [REST]):
        for outcome in queue.run([Job(key, partial(str, key)) for key in keys]):
            if isinstance(outcome.result, KvarnError):
                where = f"{outcome.node}: " if outcome.node else ""
                raise KvarnError(f"{where}{outcome.key}: {outcome.result}")
            if outcome.key == FIRST:
                names += outcome.result[0]
            yield outcome
