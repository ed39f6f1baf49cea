"""keep `hashevict`: each token replaces the one whose key is least like its queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..methods import option
from .base import KeepError
from .evicting import EvictingKeep
from .slots import ReplacingSlots

if TYPE_CHECKING:
    from ...ops.device import Array
    from ...ops.evict import Signatures
    from ..attend import LayerView
    from .slots import SlotParts

BITS = (4, 64)  # the lengths of signatures that the paper tries
AGAINST = ("query", "key")


@dataclass(frozen=True)
class HashEvict(EvictingKeep):
    """When the slots are full, a token takes the slot of the key farthest from its queries.

    The distance is the Hamming distance of SimHash signatures (`bits` random hyperplanes per layer,
    drawn from `seed`), summed over the query heads that share the KV head. The first `sinks` tokens
    and the last `recent` before the new one stay. against: what keys are compared with, the new
    token's queries as in the paper, or its key as in the authors' code. Source: HashEvict,
    algorithm 1, with its 16 bits, 4 and 10 tokens. Raises `KeepError` for bits outside 4 … 64,
    negative numbers and another `against`.
    """

    name: ClassVar[str] = "hashevict"
    summary: ClassVar[str] = (
        "the first 4, the last 10 and those most like the newest queries (16-bit SimHash "
        "signatures), separately for each KV head"
    )
    always_named: ClassVar[tuple[str, ...]] = ("bits",)
    bits: int = option(16, "bits of a signature", int)
    seed: int = 0
    sinks: int = 4
    recent: int = 10
    against: str = option(
        "query",
        "the token that differs most from the new one's query is dropped (as in the paper), or the "
        "one that differs most from its key (as in the authors' code)",
        choices=AGAINST,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not BITS[0] <= self.bits <= BITS[1]:
            raise KeepError(f"keep hashevict: {self.bits} bits, expected {BITS[0]} to {BITS[1]}")

    @property
    def protected(self) -> int:
        return self.sinks + self.recent

    def open_layer(self, view: LayerView, parts: SlotParts) -> HashSlots:
        return HashSlots(view, parts, self)


class HashSlots(ReplacingSlots):
    """SlotColumns with a signature for each, in columns of one 32-bit word."""

    def __init__(self, view: LayerView, parts: SlotParts, keep: HashEvict) -> None:
        from ...ops.evict import Signer

        super().__init__(view, parts)
        self._keep, store = keep, self.store
        centre = None if store.centre is None else store.centre[self.layer]
        self._signer = Signer(store.layout, keep.bits, (keep.seed, self.layer), centre)
        words = range(self._signer.words)
        self._columns = [store.state_column(f"signature-{word}", 4) for word in words]

    def append(self, k: Array, v: Array, slot: int, position: int) -> None:
        from ...ops.evict import sign_tokens

        super().append(k, v, slot, position)
        stop = slot + len(k)
        segments = self.store.segments(self.layer)
        sign_tokens(self.staging, segments, self._signer, self._signatures(), slot, stop)
        for column in self._columns:
            column.filled[self.layer] = stop

    def choose(self, q: Array, position: int) -> None:
        from ...ops.evict import Protected, SlotColumns, choose_farthest

        positions = self.store.positions.segments(self.layer)
        choose_farthest(
            self.staging,
            q,
            self._signer,
            SlotColumns(self._signatures(), positions, self.n_slots),
            position=position,
            protected=Protected(self._keep.sinks, self._keep.recent),
            by_key=self._keep.against == "key",
        )

    def _signatures(self) -> Signatures:
        from ...ops.evict import Signatures

        words = [column.segments(self.layer) for column in self._columns]
        return Signatures(low=words[0], high=words[-1])
