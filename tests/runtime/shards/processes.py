"""Shards as users start them, in processes of their own."""

import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

import kvarn
from kvarn.runtime.attend import Attend, Full
from kvarn.runtime.engine import on_engine

Range = tuple[int, int]


class ShardProcess:
    """`kvarn shard` of segments first … stop - 1 of a pack, at a free port or at `port`."""

    def __init__(self, pack: Path, segments: Range, *options: str, port: int = 0) -> None:
        words = ["shard", str(pack), "--segments", f"{segments[0]}:{segments[1]}"]
        words += ["--listen", f"127.0.0.1:{port}", "--threads", "1", *options]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvarn", *words], stderr=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        weakref.finalize(self, self._process.kill)  # of tests that fail, too
        assert self._process.stderr is not None
        self.line = self._process.stderr.readline()
        assert ": listening on " in self.line, self.line
        self.address = self.line.split()[3]
        self.port = int(self.address.rpartition(":")[2])

    def kill(self) -> None:
        self._process.kill()
        self.close()

    def close(self) -> str:
        """End it; what it said."""
        self._process.terminate()
        _, said = self._process.communicate(timeout=30)
        return said


@contextmanager
def shards(pack: Path, *ranges: Range, options: Sequence[str] = ()) -> Iterator[list[ShardProcess]]:
    """A shard for each range, ended after the block."""
    with ExitStack() as stack:
        started = []
        for segments in ranges:
            started.append(ShardProcess(pack, segments, *options))
            stack.callback(started[-1].close)
        yield started


def over(
    addresses: list[str], method: Attend | None = None, token: str = "", choice: str = "all"
) -> kvarn.Sharded:
    return kvarn.Sharded(kvarn.Shards(addresses, token), method or Full(), choice)


def opened(model: kvarn.Model, pack: Path, attend: Attend) -> kvarn.Context:
    """A context after the pack, which is not changed."""
    store = kvarn.Disk(pack, read_only=True)
    return model.context(8192, attend, store=store, prefill=kvarn.Exact())


def greedy(context: kvarn.Context, n: int) -> list[int]:
    """The next n ids, all of which are read."""
    ids = []
    for _ in range(n):
        ids.append(int(context.logits.argmax()))
        context.decode(ids[-1])
    return ids


class Chosen(list[tuple[int, int, list[list[int]]]]):
    """Is told of choices."""

    def add(self, layer: int, stored: int, lists: np.ndarray, counts: np.ndarray) -> None:
        rows = [row[:n].tolist() for row, n in zip(lists, counts)]
        self.append((layer, stored, rows))


def attended(context: kvarn.Context, q: np.ndarray, start: int) -> tuple[list[np.ndarray], Chosen]:
    """The attention of each layer to what the context holds, and what it chose."""
    cache, chosen, outputs = context._cache, Chosen(), []
    context.index()
    cache.attend.observer = chosen if context.plan.attend.selects else None
    for view in cache.layers:
        outputs.append(np.empty_like(q))
        on_engine(cache.attend, view, q, start, outputs[-1])
    return outputs, chosen
