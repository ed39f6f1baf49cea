"""Reading a text exactly while looking at what sparse prefill would read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from kvarn.ops.arrays import F32, U32
from kvarn.ops.reference.attention import read_kv
from kvarn.runtime.attend import Attend, BoundAttend, LayerView
from kvarn.runtime.attend.full import FullAttention
from kvarn.runtime.prefill import SparsePrefill
from kvarn.runtime.prefill.attention import ROWS, CandidateRange, SparsePrompts

if TYPE_CHECKING:
    from kvarn.runtime.loading.model_info import ModelInfo
    from kvarn.runtime.model import Model
    from kvarn.runtime.store import KVStore


Lists = list[list[U32]]


@dataclass(frozen=True)
class Block:
    """128 rows of a prompt in one layer, from position `start` on.

    q, out float32 (T, H, E): queries, and what sparse prefill makes of them. lists[t][j]: the
    tokens of `candidates` that row t and KV head j chose; shorter: such lists for ever smaller k.
    keys, values float32 (S, J, E): as stored.
    """

    layer: LayerView
    start: int
    candidates: CandidateRange
    q: F32
    out: F32
    lists: Lists
    shorter: list[Lists]
    keys: F32
    values: F32


See = Callable[[Block], None]


@dataclass(frozen=True)
class ObservedPrefill(SparsePrefill):
    """Exact reading, which calls `see` with the first rows of the chunks that begin at `starts`."""

    starts: tuple[int, ...] = ()
    see: See = field(default=lambda block: None, repr=False)

    def wrap(self, attend: Attend) -> Attend:
        return _ObservedAttend(super().wrap(attend), self.k, self.starts, self.see)


@dataclass(frozen=True)
class _ObservedAttend(Attend):
    name: ClassVar[str] = "watched"
    summary: ClassVar[str] = "exact, beside what sparse prefill would read"

    sparse: Attend
    k: int
    starts: tuple[int, ...]
    see: See

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> BoundAttend:
        prompts = self.sparse.open(model, store, n_ctx)
        assert isinstance(prompts, SparsePrompts)
        return _Bound(prompts, self.k, self.starts, self.see)


class _Bound(BoundAttend):
    every_query = True

    def __init__(self, prompts: SparsePrompts, k: int, starts: tuple[int, ...], see: See) -> None:
        self._prompts, self._starts, self._see = prompts, starts, see
        self._ks = [k]
        while self._ks[-1] > 1:
            self._ks.append(self._ks[-1] * 2 // 3)
        self._full = FullAttention()

    def appended(self, layer: LayerView, start: int, n_tokens: int) -> None:
        self._prompts.appended(layer, start, n_tokens)

    def __call__(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        candidates = self._prompts.candidates(layer, int(start))
        if candidates is not None and int(start) in self._starts:
            self._show(layer, q[:ROWS].copy(), int(start), candidates)
        self._full(layer, q, start, out)

    def _show(self, layer: LayerView, q: F32, start: int, candidates: CandidateRange) -> None:
        out, store = np.empty_like(q), layer.store
        self._prompts.attend_prompt(layer, q, start, out)
        lists, *shorter = [self._lists(layer, q, candidates, k) for k in self._ks]
        stop = start + len(q)
        keys, values = read_kv(store.segments(layer.index), store.layout, store.n_kv_heads, 0, stop)
        self._see(Block(layer, start, candidates, q, out, lists, shorter, keys, values))

    def _lists(self, layer: LayerView, q: F32, candidates: CandidateRange, k: int) -> Lists:
        chosen, counts, _ = self._prompts.choose(layer, q, candidates, k)
        return [
            [tokens[:n].copy() for tokens, n in zip(*row, strict=True)]
            for row in zip(chosen, counts, strict=True)
        ]


def watch(
    model: Model, ids: Sequence[int], prefill: SparsePrefill, starts: Sequence[int], see: See
) -> None:
    """Read `ids` exactly; `see` gets the rows at `starts`, multiples of 512, of each layer that
    would read them sparsely."""
    watched = ObservedPrefill(
        prefill.k, prefill.index, prefill.tail, prefill.from_, rerank=prefill.rerank,
        starts=tuple(starts), see=see,
    )  # fmt: skip
    with model.context(len(ids), prefill=watched) as context:
        context.prefill(ids)
