"""Replay: the tokens that another run attended to, as a file has recorded them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import kvarn
from kvarn.ops.arrays import F32
from kvarn.runtime.attend import Attend, AttendError, BoundAttend, LayerView
from kvarn.runtime.attend.selections import Selections
from kvarn.runtime.attend.sparse import BudgetedSparse, Chosen, TokenIndex
from kvarn.runtime.methods import option

if TYPE_CHECKING:
    from kvarn.ops.select import Range, Wanted
    from kvarn.runtime.loading.model_info import ModelInfo
    from kvarn.runtime.store import KVStore


@kvarn.register
@dataclass(frozen=True)
class Replay(Attend):
    """softmax over exactly the tokens that a file of selections names (see `selections`).

    Step n of a layer reads what step n of the recorded run read; after the last step, the first
    follows. So what was selected in a real text can be read from any store. Raises `AttendError` if
    the file was recorded with a model of another shape, or in a longer context.
    """

    name: ClassVar[str] = "replay"
    summary: ClassVar[str] = "the tokens that another run has recorded"
    selects: ClassVar[bool] = True

    selections: str = option(
        "", "the file in which --record-selections has recorded them", Path, metavar="FILE"
    )

    @classmethod
    def variants(cls) -> tuple[Replay, ...]:
        return ()  # any kernels are those of `topk`

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> BoundAttend:
        if not self.selections:
            raise AttendError("replay needs a file of selections: give --selections FILE")
        file, config = self.selections, model.config
        selections = Selections.read(file)
        found = selections.source.n_layers, selections.source.n_kv_heads
        n_layers = len(config.attention_layers)
        if found != (n_layers, config.n_kv_heads):
            raise AttendError(
                f"{file} holds selections of {found[0]} layers with {found[1]} KV heads, this "
                f"model has {n_layers} with {config.n_kv_heads}"
            )
        if not selections.most:
            raise AttendError(f"{file} is empty: nothing was selected when it was recorded")
        group = config.n_heads // config.n_kv_heads
        budget = -(-selections.most // group) * group
        return _Recorded(sink=0, window=1, budget=budget, selections=selections).open(
            model, store, n_ctx
        )


@dataclass(frozen=True)
class _Recorded(BudgetedSparse):
    """The options that give room for the longest list."""

    name: ClassVar[str] = "replay"
    summary: ClassVar[str] = Replay.summary

    selections: Selections | None = None

    def make_index(self, model: ModelInfo, store: KVStore) -> TokenIndex:
        assert self.selections is not None
        return _RecordedIndex(self.selections)


class _RecordedIndex(TokenIndex):
    """Chooses what was recorded."""

    def __init__(self, selections: Selections) -> None:
        self._selections = selections
        self._step = [0] * len(selections.layers)

    def extend(self, layer: LayerView, first: int, last: int) -> None:
        """Nothing: there is no column."""

    def choose(self, layer: LayerView, q: F32, among: Range, wanted: Wanted, chosen: Chosen) -> int:
        steps = self._selections.layers[layer.number]
        if not steps:
            raise AttendError(f"nothing of layer {layer.number} was recorded")
        step = steps[self._step[layer.number] % len(steps)]
        self._step[layer.number] += 1
        for j, positions in enumerate(step.lists):
            if not len(positions):
                raise AttendError(
                    f"a step of layer {layer.number} names no token of KV head {j}: at least the "
                    "newest is read"
                )
            if positions[-1] >= among.stop:
                raise AttendError(
                    f"selections of a context of {step.stored:,} tokens cannot be replayed in one "
                    f"of {among.stop:,}"
                )
            chosen.counts[j] = len(positions)
            chosen.lists[j, : len(positions)] = positions
        return 0
