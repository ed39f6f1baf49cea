"""attend `quest`: whole tiles of 16 tokens, ranked by an upper bound of their products (Quest)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import kvarn
from kvarn.ops.attention.layout import TILE
from kvarn.runtime.attend.sparse import BudgetedSparse

from .index import TileIndex

if TYPE_CHECKING:
    from kvarn.runtime.loading.model_info import ModelInfo
    from kvarn.runtime.store import KVStore


@kvarn.register
@dataclass(frozen=True)
class Quest(BudgetedSparse):
    """softmax over sinks, window and the tiles of 16 tokens with the highest bounds of q·k.

    bound = Σ_d max(q_d min_d, q_d max_d) over the least and the greatest K of each dimension in the
    tile. Each query head takes whole tiles until its budget is used. Source: Tang et al. 2024,
    "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference", section 3.3. The paper
    leaves the first two layers dense: dense_layers="0,1".
    """

    name: ClassVar[str] = "quest"
    summary: ClassVar[str] = "the tiles of 16 tokens whose products may be the largest"

    sink: int = 4
    window: int = 256

    def max_chosen(self, stored: int, group: int, share: float) -> int:
        return -(-super().max_chosen(stored, group, share) // TILE) * TILE

    def make_index(self, model: ModelInfo, store: KVStore) -> TileIndex:
        return TileIndex(model.config, store)
