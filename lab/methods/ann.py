"""Approximate nearest neighbours by faiss: inverted lists (`ivf`) or a graph (`hnsw`)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

import kvarn
from kvarn.ops.arrays import F32, I64
from kvarn.ops.attention.layout import SEGMENT
from kvarn.runtime.attend import AttendError, LayerView
from kvarn.runtime.attend.sparse import SEED, BudgetedSparse, Chosen, TokenIndex
from kvarn.runtime.store import Column

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from kvarn.models.config import ModelConfig
    from kvarn.ops.select import Range, Wanted
    from kvarn.runtime.loading.model_info import ModelInfo
    from kvarn.runtime.store import KVStore

FIRST = SEGMENT
"""Keys that inverted lists are first made of; fewer are all compared."""
GROWTH = 4
"""They are made anew whenever there are so many times as many keys."""
PROBED = 8
"""A query reads one list in so many."""
LINKS = 16
"""Neighbours of a key in the graph: half of faiss's default, and half as slow to build."""
KEPT = 128
"""Candidates that a search of the graph keeps where it wants fewer tokens."""


class AnnIndex(TokenIndex):
    """A faiss index of the stored keys, rounded to f16, for each layer and KV head; in memory.

    Tokens are indexed before they leave the window, in batches of half of it that begin at its
    multiples. Where an indexed token is overwritten, its layer is indexed anew. Threads take KV
    heads, and faiss itself runs in one thread. So an index depends on the keys alone, and not on
    timing or on how a prompt was cut into calls.
    """

    def __init__(self, kind: type[_Inverted] | type[_Graph], window: int, config: ModelConfig):
        self._faiss, self._kind = _import_faiss(), kind
        self._config, self._batch = config, max(1, window // 2)
        self.column = MemoryColumn(config.n_kv_layers)
        self._layers: dict[int, list[_Keys]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._workers = 0

    def extend(self, layer: LayerView, first: int, last: int) -> None:
        store, heads = layer.store, self._layers.get(layer.index)
        if heads is None or first < heads[0].n:
            d, n = self._config.head_dim, store.n_kv_heads
            heads = self._layers[layer.index] = [self._kind(self._faiss, d) for _ in range(n)]
        size = self._batch
        most = -(-SEGMENT // size) * size  # whole batches, some segment at a time
        stop = max(0, last - size) // size * size
        for begin in range(heads[0].n, stop, most):
            end = min(stop, begin + most)
            keys, _ = layer.device.read_kv(
                store.segments(layer.index), store.layout, store.n_kv_heads, begin, end
            )
            self._add(heads, keys.swapaxes(0, 1).copy())

    def _add(self, heads: list[_Keys], keys: F32) -> None:
        """Index keys (J, tokens, E) in batches."""

        def add(j: int) -> None:
            for i in range(0, keys.shape[1], self._batch):
                heads[j].add(keys[j, i : i + self._batch])

        self._each(add, len(heads))

    def choose(self, layer: LayerView, q: F32, among: Range, wanted: Wanted, chosen: Chosen) -> int:
        heads, k = self._layers[layer.index], wanted.k
        group = q.shape[1] // len(heads)
        # Sinks and tokens of the window may be among the best: search for so many more.
        n_fixed = among.first + max(0, heads[0].n - among.last)
        most = min(heads[0].n, k + n_fixed)

        def search(j: int) -> int:
            found, n_bytes = heads[j].search(q[0, j * group : (j + 1) * group], most)
            inside = [row[(row >= among.first) & (row < among.last)][:k] for row in found]
            always = np.arange(among.first), np.arange(among.last, among.stop)
            tokens = np.unique(np.concatenate([*always, *inside]))
            chosen.lists[j, : len(tokens)] = tokens
            chosen.counts[j] = len(tokens)
            return n_bytes

        return sum(self._each(search, len(heads)))

    def _each(self, work: Callable[[int], Any], n: int) -> list[Any]:
        """work(0) … work(n - 1), in as many threads as kernels run in."""
        from concurrent.futures import ThreadPoolExecutor

        from kvarn.jit.threads import n_threads

        if self._pool is None or self._workers != n_threads():
            self._workers = n_threads()
            self._pool = ThreadPoolExecutor(
                self._workers, "faiss", self._faiss.omp_set_num_threads, (1,)
            )
        return list(self._pool.map(work, range(n)))


class MemoryColumn(Column):
    """How far an index has come that keeps its items itself."""

    item_bytes = 0

    def __init__(self, n_layers: int) -> None:
        self.filled = np.zeros(n_layers, np.int64)

    def segments(self, layer: int) -> I64:
        return np.empty(0, np.int64)

    def restart(self, first: int = 0) -> None:
        np.minimum(self.filled, first, out=self.filled)


class _Keys(ABC):
    """The keys of one KV head: token i has number i; n of them are indexed."""

    n = 0

    @abstractmethod
    def add(self, keys: F32) -> None:
        """Index keys float32 (tokens, E) of the next tokens."""

    @abstractmethod
    def search(self, q: F32, k: int) -> tuple[I64, int]:
        """Tokens int64 (G, k) with the largest products with q (G, E) that were found, best first;
        -1: no more were found. And about how many bytes were read."""


class _Inverted(_Keys):
    """Lists of keys around the centres of k-means; as many lists as the root of the keys' number.

    They are made anew when there are 1,024, 4,096, 16,384 … keys, whatever the batches were.
    """

    def __init__(self, faiss: Any, head_dim: int) -> None:
        self._faiss, self._d, self._next = faiss, head_dim, FIRST
        self._index, self._lists = faiss.IndexFlatIP(head_dim), 1

    def add(self, keys: F32) -> None:
        while len(keys):
            now, keys = keys[: self._next - self.n], keys[self._next - self.n :]
            self._index.add(now)
            self.n += len(now)
            if self.n == self._next:
                self._make_lists()

    def _make_lists(self) -> None:
        faiss, keys = self._faiss, self._index.reconstruct_n(0, self.n)
        self._lists, self._next = math.isqrt(self.n), GROWTH * self.n
        self._centres, half = faiss.IndexFlatIP(self._d), faiss.ScalarQuantizer.QT_fp16
        made = faiss.IndexIVFScalarQuantizer(
            self._centres, self._d, self._lists, half, faiss.METRIC_INNER_PRODUCT, False
        )
        made.cp.seed, made.cp.niter, made.cp.max_points_per_centroid = SEED, 10, 64
        made.cp.min_points_per_centroid = 1  # it warns of fewer than 39; each list has 32 and more
        made.nprobe = -(-self._lists // PROBED)
        made.train(keys)
        made.add(keys)
        self._index = made

    def search(self, q: F32, k: int) -> tuple[I64, int]:
        found: I64 = self._index.search(q, k)[1]
        share = 1 if self._lists == 1 else PROBED
        return found, len(q) * self._d * (4 * self._lists + 2 * self.n // share)


class _Graph(_Keys):
    """A navigable graph of several layers (HNSW)."""

    def __init__(self, faiss: Any, head_dim: int) -> None:
        half, product = faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        self._index, self._d = faiss.IndexHNSWSQ(head_dim, half, LINKS, product), head_dim

    def add(self, keys: F32) -> None:
        self._index.add(keys)
        self.n += len(keys)

    def search(self, q: F32, k: int) -> tuple[I64, int]:
        kept = self._index.hnsw.efSearch = max(k, KEPT)
        found: I64 = self._index.search(q, k)[1]
        return found, len(q) * kept * (2 * self._d + 4 * 2 * LINKS)


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise AttendError("ivf and hnsw need faiss: pip install 'faiss-cpu>=1.9'") from error
    return faiss


@dataclass(frozen=True)
class _Nearest(BudgetedSparse, ABC):
    """softmax over sinks, window and the k tokens of each query head with the largest q·k of those
    that faiss finds."""

    kind: ClassVar[type[_Inverted] | type[_Graph]]

    sink: int = 4
    window: int = 256

    def make_index(self, model: ModelInfo, store: KVStore) -> AnnIndex:
        return AnnIndex(self.kind, self.window, model.config)


@kvarn.register
@dataclass(frozen=True)
class Ivf(_Nearest):
    """By inverted lists."""

    name: ClassVar[str] = "ivf"
    summary: ClassVar[str] = "the largest products that faiss finds in inverted lists"
    kind = _Inverted


@kvarn.register
@dataclass(frozen=True)
class Hnsw(_Nearest):
    """By a graph."""

    name: ClassVar[str] = "hnsw"
    summary: ClassVar[str] = "the largest products that faiss finds by a graph"
    kind = _Graph
