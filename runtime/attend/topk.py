"""attend `topk`: softmax over the largest products q·k (top-k attention)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...ops.attention.layout import SEGMENT
from ..methods import option
from .base import AttendError, LayerView
from .sparse import SEED, Budgeted, Chosen, TokenIndex

if TYPE_CHECKING:
    from ...models.config import ModelConfig
    from ...ops.select import Range
    from ..loading.model_info import ModelInfo
    from ..store import KVStore
    from .base import F32


NAMES = ("flat", "sketch")
RERANKED = 2
"""How many candidates per wanted token sketches find; these are then scored exactly."""
RERANKED_IN_BLOCKS = 2.5
"""The same with blocks: 2 would reach 94% of the coverage of `flat`, 3 some 97%."""


@dataclass(frozen=True)
class TopK(Budgeted):
    """softmax over sinks, window and the k tokens with the largest q·k of each query head.

    index: how those are found; "flat" reads all keys and is exact, "sketch" (the default) reads
    one bit per dimension and key and scores the best estimates exactly. levels: 2 groups similar
    keys in blocks and rules most blocks out by their mean key. Source: top-k attention, algorithm
    1, with one softmax over all that is read; RaBitQ for the sketches.
    """

    name: ClassVar[str] = "topk"
    summary: ClassVar[str] = "the tokens whose keys have the largest products with the query"

    sink: int = 4
    window: int = 256
    index: str = option(
        "sketch", "search all keys, or their sketches of one bit per dimension", choices=NAMES
    )
    levels: int = option(
        1, "2 searches blocks of similar keys first, and the sketches of few of them", int
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.index not in NAMES:
            raise AttendError(f"index is {self.index!r}, expected one of {', '.join(NAMES)}")
        if (self.index, self.levels) not in INDEXES:
            known = [str(levels) for index, levels in INDEXES if index == self.index]
            raise AttendError(
                f"levels is {self.levels}, expected {' or '.join(known)} for index {self.index}"
            )

    @classmethod
    def variants(cls) -> tuple[TopK, ...]:
        return tuple(cls(index=index, levels=levels) for index, levels in INDEXES)

    def make_index(self, model: ModelInfo, store: KVStore) -> TokenIndex:
        return INDEXES[self.index, self.levels](model.config, store)


class FlatIndex(TokenIndex):
    """No index: the stored keys themselves are searched."""

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        self._config, self._layout = config, store.layout

    def prepare(self, n_ctx: int, k: int) -> None:
        from ...ops.select import ExactScratch

        config = self._config
        self._scratch = ExactScratch(config.n_heads, config.n_kv_heads, n_ctx, k, self._layout)

    def extend(self, layer: LayerView, first: int, last: int) -> None:
        """Nothing: there is no column."""

    def choose(self, layer: LayerView, q: F32, among: Range, k: int, chosen: Chosen) -> int:
        from ...ops.select import largest

        segments = layer.store.segments(layer.index)
        largest(
            q, segments, among, k, chosen.lists, chosen.counts, seed=SEED, scratch=self._scratch
        )
        n_tokens = (among.last - among.first) * self._config.n_kv_heads
        return n_tokens * (self._layout.k_row_bytes + self._layout.scale_row_bytes)


class SketchIndex(TokenIndex):
    """One bit per rotated dimension and a factor for every stored key.

    Columns `sketch-SEED` (bits / 8 bytes) and `sketch-SEED-factors` (f16). All layers share one
    rotation: the estimates need a random one, not one per layer.
    """

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        from ...ops.select import Rotation

        self._config, self._layout = config, store.layout
        self._rotation = Rotation.random(config.head_dim, SEED)
        self._bits = store.column(f"sketch-{SEED}", self._rotation.bits // 8)
        self.column = self._bits
        self._factors = store.column(f"sketch-{SEED}-factors", 2)

    def prepare(self, n_ctx: int, k: int) -> None:
        from ...ops.select import SketchScratch

        heads, kv_heads = self._config.n_heads, self._config.n_kv_heads
        self._scratch = SketchScratch(heads, kv_heads, n_ctx, RERANKED * k, self._layout)

    def extend(self, layer: LayerView, first: int, last: int) -> None:
        from ...ops.select import sketch_keys

        store, i = layer.store, layer.index
        first = min(first, int(self._factors.filled[i]))
        sketch_keys(
            self._rotation, store.segments(i), store.layout, store.n_kv_heads,
            self._bits.segments(i), self._factors.segments(i), first, last,
        )  # fmt: skip
        self._factors.filled[i] = last

    def leave_out(self, layer: LayerView, stop: int) -> None:
        super().leave_out(layer, stop)
        self._factors.filled[layer.index] = stop

    def choose(self, layer: LayerView, q: F32, among: Range, k: int, chosen: Chosen) -> int:
        from ...ops.select import best_sketched

        i = layer.index
        best_sketched(
            q, layer.store.segments(i), self._bits.segments(i), self._factors.segments(i),
            self._rotation, among, k, RERANKED * k, chosen.lists, chosen.counts, seed=SEED,
            scratch=self._scratch,
        )  # fmt: skip
        passes = self._scratch.group // self._scratch.together
        tokens = (among.last - among.first) * self._config.n_kv_heads
        return passes * tokens * (self._rotation.bits // 8 + 2)


class BlockIndex(TokenIndex):
    """Sketches of each full segment of 1,024 tokens, in blocks of 32 similar keys.

    Column `blocks-SEED`; tokens of the open segment are all scored exactly.
    """

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        from ...ops.select import Rotation, block_item_bytes

        self._config, self._layout = config, store.layout
        self._rotation = Rotation.random(config.head_dim, SEED)
        self._item_bytes = block_item_bytes(self._rotation.bits)
        self.column = self._blocks = store.column(f"blocks-{SEED}", self._item_bytes)

    def prepare(self, n_ctx: int, k: int) -> None:
        from ...ops.select import BlockScratch

        heads, kv_heads = self._config.n_heads, self._config.n_kv_heads
        few = int(RERANKED_IN_BLOCKS * k)
        self._scratch = BlockScratch(heads, kv_heads, n_ctx, few, self._layout)

    def extend(self, layer: LayerView, first: int, last: int) -> None:
        from ...ops.select import block_keys

        store, i = layer.store, layer.index
        if first // SEGMENT < last // SEGMENT:
            block_keys(
                self._rotation, store.segments(i), store.layout, store.n_kv_heads,
                self._blocks.segments(i), first // SEGMENT, last // SEGMENT,
            )  # fmt: skip

    def choose(self, layer: LayerView, q: F32, among: Range, k: int, chosen: Chosen) -> int:
        from ...ops.select import best_in_blocks

        i, bits = layer.index, self._rotation.bits
        n_blocks = best_in_blocks(
            q, layer.store.segments(i), self._blocks.segments(i), self._rotation, among, k,
            int(RERANKED_IN_BLOCKS * k), chosen.lists, chosen.counts, seed=SEED,
            scratch=self._scratch,
        )  # fmt: skip
        passes = self._scratch.group // self._scratch.together
        blocks = passes * (among.last - among.first) // 32 * self._config.n_kv_heads
        return blocks * (bits + 8) + n_blocks * 32 * (bits // 8 + 4)


INDEXES: dict[tuple[str, int], type[FlatIndex] | type[SketchIndex] | type[BlockIndex]] = {
    ("flat", 1): FlatIndex,
    ("sketch", 1): SketchIndex,
    ("sketch", 2): BlockIndex,
}
"""Name and levels → the index."""
