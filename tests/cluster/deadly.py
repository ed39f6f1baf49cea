"""What workers do that die of it, for tests of what others then do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvarn.cluster.blocks import BlockReader, BlockReaderConfig
from kvarn.cluster.reading import Reader, ReaderConfig, TextBytes, TextResult
from kvarn.cluster.shelf import Shelf, ShelfConfig, ShelfJob

DIES_AT = 1500
"""Tokens of a text."""


@dataclass(frozen=True)
class Deadly(ReaderConfig):
    """Readings whose process dies in the text `dies`, so many times, or hangs for a long time; or
    another signal comes than that which kills it."""

    dies: str = ""
    times: int = 1
    at: int = DIES_AT
    hangs: bool = False
    by: signal.Signals = signal.SIGKILL

    def __call__(self, threads: int) -> Reader:
        return DeadlyReader(self, threads)


class DeadlyReader(Reader):
    def run(self, work: TextBytes, progress: Callable[[int, int], None]) -> TextResult:
        deadly: Any = self._config
        mark = deadly.folder / ".died"

        def dying(done: int, total: int) -> None:
            progress(done, total)
            n_died = len(mark.read_text()) if mark.exists() else 0
            if work.name == deadly.dies and done >= deadly.at and n_died < deadly.times:
                mark.write_text("x" * (n_died + 1))
                if deadly.hangs:
                    time.sleep(600)
                os.kill(os.getpid(), deadly.by)

        return super().run(work, dying)


@dataclass(frozen=True)
class DeadlyBlocks(BlockReaderConfig):
    """Its process dies once in a block, or a signal stops it."""

    by: signal.Signals = signal.SIGKILL

    def __call__(self, threads: int) -> BlockReader:
        return DeadlyBlockReader(self, threads)


class DeadlyBlockReader(BlockReader):
    def run(self, work: str, progress: Callable[[int, int], None]) -> Any:
        deadly: Any = self._config
        mark = deadly.how.folder / ".died"

        def dying(done: int, total: int) -> None:
            progress(done, total)
            if work == "block 2 of 3" and done >= 512 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), deadly.by)

        return super().run(work, dying)


@dataclass(frozen=True)
class DeadlyAsking(ShelfConfig):
    def __call__(self, threads: int) -> Shelf:
        return DeadlyShelf(self, threads)


class DeadlyShelf(Shelf):
    """Dies, once, at the second pack that it is asked of."""

    n_asked = 0

    def run(self, work: ShelfJob, progress: Callable[[int, int], None]) -> Any:
        self.n_asked += 1
        mark = self._config.folders[0] / ".died"
        if self.n_asked == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(work, progress)
