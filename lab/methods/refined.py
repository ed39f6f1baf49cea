"""`topk` whose choice something changes, and an index that changes that of another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from kvarn.ops.arrays import F32
from kvarn.runtime.attend import LayerView, TopK
from kvarn.runtime.attend.sparse import Chosen, TokenIndex
from kvarn.system.spelling import spelt

if TYPE_CHECKING:
    from kvarn.ops.select import Range, Wanted


@dataclass(frozen=True)
class RefinedTopK(TopK):
    """`topk` on the CPU over all tokens, with a `Refined` index; a subclass names and makes it."""

    @property
    def needs_all_tokens(self) -> bool:
        return True

    @property
    def host_only(self) -> str:
        return f"{spelt('method')} {self.name}"

    @classmethod
    def variants(cls) -> tuple[Self, ...]:
        return (cls(),)


class Refined(TokenIndex):
    """Another index, whose choice a subclass changes."""

    def __init__(self, index: TokenIndex) -> None:
        self.index, self.notices, self.column = index, index.notices, index.column
        self.weighs, self.least = index.weighs, index.least

    def update(self, layer: LayerView, start: int, stop: int) -> None:
        self.index.update(layer, start, stop)

    def extend(self, layer: LayerView, first: int, last: int) -> None:
        self.index.extend(layer, first, last)

    def mark_skipped(self, layer: LayerView, stop: int) -> None:
        self.index.mark_skipped(layer, stop)

    def prepare(self, n_ctx: int, k: int) -> None:
        self.index.prepare(n_ctx, k)

    def wanted(self, among: Range, k: int) -> Wanted:
        return self.index.wanted(among, k)

    def add_rest(
        self, layer: LayerView, q: F32, among: Range, chosen: Chosen, masses: F32, out: F32
    ) -> int:
        return self.index.add_rest(layer, q, among, chosen, masses, out)
