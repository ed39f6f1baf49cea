"""The two indexes over made-up keys, as the ops take them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from ctypes import c_uint8

import numpy as np

from kvarn.ops.arrays import F32, I64, U32
from kvarn.ops.attention.layout import SEGMENT, TileLayout
from kvarn.ops.select import (
    Frame,
    Lists,
    Range,
    Rotation,
    RowSignatureScratch,
    RowSketchScratch,
    SignatureScratch,
    SketchedKeys,
    SketchScratch,
    Wanted,
    best_sketched,
    best_sketched_rows,
    encode_heads,
    encode_keys,
    hyperplanes,
    nearest,
    nearest_rows,
    simhash_network,
    sketch_keys,
)
from kvarn.runtime.store.ram.store import RamStore

HEADS, KV_HEADS, HEAD_DIM, SEED = 32, 8, 64, 0
SINKS = 128  # tokens that are read anyway
_TOPICS, _STAY = 64, 48  # directions of keys, and for how many tokens one of them lasts


def made_up(n: int, heads: int, seed: int) -> F32:
    """float32 (n, heads, 64): of each head a walk among 64 directions, half of it noise.

    As in text, neighbours are alike and themes return; queries are made as keys are, so that each
    finds its best tokens in stretches of them.
    """
    rng = np.random.default_rng(seed)
    themes = np.random.default_rng(1).standard_normal((KV_HEADS, _TOPICS, HEAD_DIM))
    x = rng.standard_normal((n, heads, HEAD_DIM), np.float32)
    for head in range(heads):
        turns = np.cumsum(rng.random(n) < 1 / _STAY)
        theme = rng.integers(0, _TOPICS, turns[-1] + 1)[turns]
        x[:, head] += themes[head * KV_HEADS // heads, theme]
    return x


class Subject(ABC):
    """An index over `depth` made-up keys in memory, and `rows` rows of queries; see `made_up`."""

    def __init__(self, depth: int, rows: int, k: int) -> None:
        self.k, self.among = k, Range(SINKS, depth, depth)
        self.store = RamStore(TileLayout(HEAD_DIM, "q8_0", "q8_0"), 1, KV_HEADS)
        self.store.reserve(depth)
        for start in range(0, depth, SEGMENT):
            k_rows = made_up(min(SEGMENT, depth - start), KV_HEADS, 100 + start)
            self.store.append(0, k_rows, k_rows, start)
        self.segments = self.store.segments(0)
        self.q = made_up(rows, HEADS, 2)
        longest = k * HEADS // KV_HEADS
        self._index = np.zeros((KV_HEADS, longest + SINKS), np.uint32)
        self._counts = np.zeros(KV_HEADS, np.int64)
        self._many = np.zeros((rows, KV_HEADS, longest), np.uint32)
        self._many_counts = np.zeros((rows, KV_HEADS), np.int64)

    @abstractmethod
    def one_by_one(self, rows: Sequence[int]) -> None:
        """Choose for each of the rows alone, as decode does; `alone` has the last one's lists."""

    @abstractmethod
    def rows(self, rows: range) -> None:
        """Choose for all of the rows, as a sparse prefill does; `lists_of` has their lists."""

    def alone(self) -> list[U32]:
        """Each KV head's list, without the first tokens."""
        return [one[SINKS:n] for one, n in zip(self._index, self._counts, strict=True)]

    def lists_of(self, row: int) -> list[U32]:
        """Each KV head's list of a row, counted from the first one of the last call."""
        many, counts = self._many[row], self._many_counts[row]
        return [one[:n] for one, n in zip(many, counts, strict=True)]

    def _column(self, name: str, item_bytes: int) -> I64:
        places: I64 = self.store.column(name, item_bytes).segments(0)
        for place in places:  # touched, so that its pages exist
            (c_uint8 * 1).from_address(int(place))[0] = 0
        return places


class Signatures(Subject):
    """`hash`: 32 bits by random hyperplanes."""

    def __init__(self, depth: int, rows: int, k: int) -> None:
        super().__init__(depth, rows, k)
        network = simhash_network(hyperplanes(HEAD_DIM, 32, (SEED,), "by element"))
        self._items = self._column("signatures", 4)
        where = self.segments, self.store.layout, KV_HEADS, self._items
        encode_keys(network, *where, 0, depth)
        signed = np.zeros((rows, HEADS), np.uint64)
        encode_heads(network, self.q, 0, HEADS, signed)
        self._queries = signed.reshape(rows, KV_HEADS, -1)
        self._scratch = SignatureScratch(HEADS, KV_HEADS, depth, k)
        self._row_scratch = RowSignatureScratch(HEADS, KV_HEADS, depth, k)

    def one_by_one(self, rows: Sequence[int]) -> None:
        for row in rows:
            nearest(
                self._queries[row], self._items, 32, self.among, Wanted(self.k, self.k, SEED),
                Lists(self._index, self._counts), scratch=self._scratch,
            )  # fmt: skip

    def rows(self, rows: range) -> None:
        n = len(rows)
        nearest_rows(
            self._queries[rows.start : rows.stop], self._items, 32, self.among,
            Wanted(self.k, self.k, SEED), self._many[:n], self._many_counts[:n],
            scratch=self._row_scratch,
        )  # fmt: skip


class Sketched(Subject):
    """`sketch`: estimates, and the best of twice as many by exact products."""

    def __init__(self, depth: int, rows: int, k: int) -> None:
        super().__init__(depth, rows, k)
        rotation, layout = Rotation.random(HEAD_DIM, SEED), self.store.layout
        bits = self._column("bits", rotation.bits // 8)
        factors = self._column("factors", 2)
        frame = Frame.plain(KV_HEADS, HEAD_DIM)
        self._keys = SketchedKeys(self.segments, bits, factors, rotation, frame)
        sketch_keys(self._keys, layout, 0, depth)
        self._wanted = Wanted(k, 2 * k, SEED)
        self._scratch = SketchScratch(HEADS, KV_HEADS, depth, 2 * k, layout)
        self._row_scratch = RowSketchScratch(HEADS, KV_HEADS, depth, 2 * k, layout)

    def one_by_one(self, rows: Sequence[int]) -> None:
        lists = Lists(self._index, self._counts)
        for row in rows:
            q = self.q[row : row + 1]
            best_sketched(q, self._keys, self.among, self._wanted, lists, scratch=self._scratch)

    def rows(self, rows: range) -> None:
        n = len(rows)
        best_sketched_rows(
            self.q[rows.start : rows.stop], self._keys, self.among, self._wanted, self._many[:n],
            self._many_counts[:n], scratch=self._row_scratch,
        )  # fmt: skip


SUBJECTS: dict[str, type[Subject]] = {"hash": Signatures, "sketch": Sketched}
