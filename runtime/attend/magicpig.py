"""attend `magicpig`: tokens drawn at random, likelier the nearer their keys are (LSH sampling)."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

from ...ops.select import Tables
from ...system.values import count
from ..loading.model_info import ModelInfo
from ..methods import option
from ..store import KVStore
from .base import AttendError
from .indexes import TableIndex
from .sparse import SEED, Sparse, TokenIndex
from .sparse.method import NONE

EVERY_16TH = "0,16,…"
_EVERY = 16
_TABLES = re.compile(r"(\d{1,9})x(\d{1,9})")
_MOST_BYTES = 1 << 50  # of any machine


@dataclass(frozen=True)
class MagicPig(Sparse):
    """softmax of q . k - log u over sinks, window (u = 1) and the tokens that a query head draws.

    It draws those that agree with it in at least two of L hash tables, in the signs of all K random
    projections; keys less their mean. u is the probability of that, so numerator and denominator of
    attention are right in the mean over the projections. Each query head reads only what it drew
    itself. tables: "KxL", 4-16 and 2-1000. index_bytes: the most that tables may take; None: half
    of the free memory, or of the free disk for packs that are written. table_seed: draws the
    projections; tables of another seed are made anew. dense_layers "0,16,…": of the layers without
    a sliding window, the first and every 16th after it. Source: MagicPIG, sections 4.3 and 5.1
    (sinks, window; layers 0 and 16 of 32 read every token).
    """

    name: ClassVar[str] = "magicpig"
    summary: ClassVar[str] = "tokens drawn at random, likelier the nearer their keys are to it"

    sink: int = 4
    window: int = 64
    dense_layers: str | Sequence[int] = EVERY_16TH
    tables: str = option(
        "10x150",
        "bits x number of its hash tables: more bits draw less, more tables draw more",
        metavar="KxL",
    )
    index_bytes: int | None = option(
        None,
        "the most bytes that its tables may take (default: half of what is free)",
        partial(count, most=_MOST_BYTES),
    )
    table_seed: int = option(SEED, "draws its planes: other seeds draw other tokens", int)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.key_tables()
        if self.index_bytes is not None and self.index_bytes < 1:
            raise AttendError(f"index-bytes is {self.index_bytes}, expected at least 1")

    def key_tables(self) -> Tables:
        """The tables that the option names; `AttendError` for others than there can be."""
        words = _TABLES.fullmatch(str(self.tables).strip())
        if words is None:
            raise AttendError(f"tables are {self.tables!r}, expected bits x number, such as 10x150")
        bits, count = map(int, words.groups())
        if not 4 <= bits <= 16:
            raise AttendError(f"tables {self.tables} have {bits} bits, expected 4 to 16")
        if not 2 <= count <= 1000:
            raise AttendError(f"tables {self.tables} are {count} tables, expected 2 to 1000")
        return Tables(bits, count)

    def make_index(self, model: ModelInfo, store: KVStore) -> TokenIndex:
        tables, most = self.key_tables(), self.index_bytes
        return TableIndex(model, store, tables, most, self.table_seed)

    def max_chosen(self, stored: int, group: int, share: float) -> int:
        return stored

    def reads_all(self, stored: int, group: int, share: float) -> bool:
        return self.sink + self.window >= stored

    def dense(self, n_layers: int, windowed: Collection[int] = ()) -> frozenset[int]:
        if self.dense_layers == EVERY_16TH:
            choosing = [i for i in range(n_layers) if i not in windowed]
            return frozenset(choosing[::_EVERY])
        return super().dense(n_layers, windowed)

    def shortened(self) -> Self:
        return replace(self, dense_layers=NONE)
