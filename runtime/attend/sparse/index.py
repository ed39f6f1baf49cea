"""The interface of an index: data about the stored keys, by which a sparse method chooses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ....models.config import ModelConfig
from ....ops.arrays import F32, I32, U32, U64
from ....ops.device import Array, Device
from ....ops.select import Range, Wanted, taken_words
from ...store import Column
from ..base import LayerView

SEED = 20_240_517
"""Of every choice at random: projections, and the order among equal scores."""
NO_WEIGHT = -1e29
"""Up to this log weight, a token does not count for a query head: another one of its group has
drawn it."""


@dataclass(frozen=True)
class Chosen:
    """The tokens that each KV head reads, as an index chose them: memory that every step reuses.

    lists: (J, room), ascending; the first counts[j] of them count (types: `Device.list_types`).
    log_weights: float32 (H, room), added to the logits of those tokens; (0, 0) where a method
    weighs none. taken: uint64 (J, words), a bit for each slot that is read without being chosen;
    (J, 0) where tokens are in order, so that sinks and window are those outside the range.
    """

    lists: Array
    counts: Array
    log_weights: F32
    taken: U64

    @staticmethod
    def room_for(
        config: ModelConfig, device: Device, room: int, *, weighed: bool, n_slots: int = 0
    ) -> Chosen:
        """Lists of up to `room` tokens; n_slots: of a context that evicts."""
        kv_heads, (tokens, lengths) = config.n_kv_heads, device.list_types
        return Chosen(
            device.zeros((kv_heads, room), tokens),
            device.zeros((kv_heads,), lengths),
            np.zeros((config.n_heads, room) if weighed else (0, 0), np.float32),
            np.zeros((kv_heads, taken_words(n_slots)), np.uint64),
        )

    def of_heads(self, n_heads: int) -> list[U32]:
        """The tokens that each query head attends to: those of its KV head's list, and where they
        are weighed those alone that count for it."""
        group = n_heads // len(self.counts)
        lists = [self.lists[h // group][: self.counts[h // group]] for h in range(n_heads)]
        if not self.log_weights.size:
            return lists
        weighed = zip(lists, self.log_weights)
        return [tokens[weights[: len(tokens)] > NO_WEIGHT] for tokens, weights in weighed]


class Choice(NamedTuple):
    """The tokens that a token chooses from, and how many it takes."""

    among: Range
    wanted: Wanted


class TokenIndex(ABC):
    """Data about the stored keys of one context, and choices by it."""

    weighs: bool = False
    """Whether `choose` fills log weights."""
    records: bool = False
    """Whether `index_one`, `choose` and `add_rest` only launch kernels and take the numbers of
    `Device.numbers`, in ways that change with the number of full segments alone."""
    notices: tuple[str, ...] = ()
    column: Column | None = None
    """Where the index is; None: there is none, the stored keys themselves are searched."""
    least: int = 0
    """All of fewer stored tokens are read."""

    def update(self, layer: LayerView, start: int, stop: int) -> None:
        """Index the new tokens start … stop - 1, and those before them that were never indexed or
        have been overwritten since."""
        if self.column is not None:
            filled = self.column.filled
            self.extend(layer, min(start, int(filled[layer.index])), stop)
            filled[layer.index] = stop

    @abstractmethod
    def extend(self, layer: LayerView, first: int, stop: int) -> None:
        """Index the stored keys of tokens first … stop - 1; not called without a column."""

    def mark_skipped(self, layer: LayerView, stop: int) -> None:
        """Mark tokens 0 … stop - 1 of a layer that is not searched as indexed: see `Column`."""
        if self.column is not None:
            self.column.filled[layer.index] = stop

    def prepare(self, n_ctx: int, k: int) -> None:  # noqa: B027 - not all need any
        """Make room for choices of up to k tokens per query head among up to n_ctx."""

    # For tokens whose launches are recorded in a graph.

    def sources(self, start: int) -> list[object] | None:
        """The objects that launches for the token at `start` read beside K and V. What was recorded
        is valid as long as they are the same objects.

        None unless all tokens before it are indexed, and `index_one` can index the token.
        """
        columns = [] if self.column is None else [self.column]
        return places_of(columns) if all_filled(columns, start) else None

    def index_one(self, layer: LayerView, start: int, stop: int) -> None:
        """Index the key that is stored at `start` = `stop` - 1, by launches alone."""
        if self.column is not None:
            self.extend(layer, start, stop)

    def mark_indexed(self, stop: int) -> None:
        """Mark the tokens up to `stop` - 1 as indexed in all layers: `index_one` has done it, or
        the layer is not searched (see `Column`)."""
        if self.column is not None:
            self.column.filled[:] = stop

    def wanted(self, among: Range, k: int) -> Wanted:
        """The argument of `choose` by which each query head takes k tokens."""
        return Wanted(k, k, SEED)

    def bytes_read(self, layer: int, among: Range, attended: int) -> int:
        """Bytes of the index that the layer's last choice and the `add_rest` after it have read;
        for indexes with `records`. attended: tokens that all KV heads have read."""
        return 0

    @abstractmethod
    def choose(self, layer: LayerView, q: F32, among: Range, wanted: Wanted, chosen: Chosen) -> int:
        """Choose tokens for q (1, H, E), sinks and window among them.

        Returns the bytes of the index that were read.
        """

    def index_and_choose(
        self, layer: LayerView, span: list[int], q: Array, choice: Choice, chosen: Chosen
    ) -> None:
        """`index_one` of the token whose positions `span` gives, then `choose` for its queries; by
        launches alone."""
        self.index_one(layer, *span)
        self.choose(layer, q, *choice, chosen)

    def add_rest(
        self, layer: LayerView, q: F32, among: Range, chosen: Chosen, masses: F32, out: F32
    ) -> int:
        """Add the share of the tokens that were not chosen to out (1, H, E), attention over those
        that were.

        masses: see `GatheredScratch`. Returns the bytes of the index that were read. Most indexes
        add nothing.
        """
        return 0


def all_filled(columns: list[Column], stop: int) -> bool:
    """Whether all layers have just the items of the tokens before `stop`."""
    for column in columns:  # for each token: lists are faster than arrays here
        filled = column.filled.tolist()
        if filled.count(stop) != len(filled):
            return False
    return True


def places_of(columns: list[Column]) -> list[object]:
    """What is another object where a place of a column is another one."""
    return [column.segments(0) for column in columns]


class SlotIndex(TokenIndex):
    """An index that also serves contexts that evict. Tokens in their slots change and are in no
    order; `choose` leaves out those of `Chosen.taken`."""

    @abstractmethod
    def extend_slots(self, layer: LayerView, slots: I32, n_tokens: int) -> None:
        """Index the keys that are in the slots slots[:, :n_tokens], int32 (J, …); not called
        without a column."""
