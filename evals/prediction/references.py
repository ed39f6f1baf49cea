"""What each choosing method is compared with: sinks and window alone, and an exact choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...ops.arrays import F32
from ...ops.select import Range, Wanted
from ...runtime.attend import Attend, Full, LayerView, TopK
from ...runtime.attend.sparse import BudgetedSparse, Chosen, Sparse, TokenIndex
from ...runtime.loading.model_info import ModelInfo
from ...runtime.store import KVStore


@dataclass(frozen=True)
class SinksAndWindow(Sparse):
    """Reads the first `sink` and the last `window` tokens, and chooses none of the others."""

    name: ClassVar[str] = "sinks-and-window"
    summary: ClassVar[str] = "the first tokens and the last ones alone"

    def max_chosen(self, stored: int, group: int, share: float) -> int:
        return 0

    def make_index(self, model: ModelInfo, store: KVStore) -> TokenIndex:
        return _NoIndex()


class _NoIndex(TokenIndex):
    def extend(self, layer: LayerView, first: int, stop: int) -> None:
        """Nothing: there is no column."""

    def choose(self, layer: LayerView, q: F32, among: Range, wanted: Wanted, chosen: Chosen) -> int:
        window = np.arange(among.last, among.stop, dtype=np.uint32)
        n = among.first + len(window)
        chosen.lists[:, : among.first] = np.arange(among.first, dtype=np.uint32)
        chosen.lists[:, among.first : n] = window
        chosen.counts[:] = n
        return 0


def with_references(methods: dict[str, Attend], probe: int) -> dict[str, Attend]:
    """The methods by their names, full attention first, with those that each is compared with:
    its sinks and window alone, and for one with a budget an exact choice of as many tokens."""
    compared: dict[str, Attend] = {"full": Full()}
    for name, method in methods.items():
        compared.setdefault(name, method)
        if not isinstance(method, Sparse):
            continue
        alone = SinksAndWindow(method.sink, method.window, probe=probe)
        if isinstance(method, BudgetedSparse):
            exact = TopK(
                budget=method.budget, budget_unit=method.budget_unit, index="flat",
                sink=method.sink, window=method.window, probe=probe,
            )  # fmt: skip
            unit = "" if method.budget_unit == "kv-head" else f" a {method.budget_unit}"
            compared.setdefault(_named(f"exact choice of {method.budget}{unit}", method), exact)
        compared.setdefault(_named("sinks and window", method), alone)
    return compared


def _named(reference: str, method: Sparse) -> str:
    return f"{reference} ({method.sink} + {method.window})"
