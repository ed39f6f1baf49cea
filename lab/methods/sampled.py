"""A random sample of the tokens that `topk` did not choose, beside those that it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

import kvarn
from kvarn.ops.arrays import F32
from kvarn.runtime.attend import AttendError, LayerView
from kvarn.runtime.attend.sparse import SEED, Chosen, TokenIndex

from .refined import Refined, RefinedTopK

if TYPE_CHECKING:
    from kvarn.ops.select import Range, Wanted
    from kvarn.runtime.loading.model_info import ModelInfo
    from kvarn.runtime.store import KVStore


@kvarn.register
@dataclass(frozen=True)
class Sampled(RefinedTopK):
    """`topk` with half of the budget, and a sample of the rest with the other half."""

    name: ClassVar[str] = "sampled"
    summary: ClassVar[str] = "half of the budget as `topk` chooses, half drawn from the others"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tail != "none":
            raise AttendError(f"tail is {self.tail}, expected none: the sample is the tail")

    def make_index(self, model: ModelInfo, store: KVStore) -> TokenIndex:
        return SampledIndex(super().make_index(model, store))


class SampledIndex(Refined):
    """Another index that gets half of the budget; the other half is drawn at random.

    The heads that share a KV head share its draws: of the `left` tokens that none of them chose,
    `drawn` are drawn uniformly without replacement, each with the log weight log(left / drawn), so
    that numerator and denominator of the softmax are unbiased. The draws depend on the seed, the
    layer and the number of tokens stored alone.
    """

    def __init__(self, index: TokenIndex) -> None:
        super().__init__(index)
        self.weighs = True

    def choose(self, layer: LayerView, q: F32, among: Range, wanted: Wanted, chosen: Chosen) -> int:
        k = wanted.k
        n_bytes = self.index.choose(layer, q, among, self.index.wanted(among, k - k // 2), chosen)
        n_kv_heads = len(chosen.counts)
        group = q.shape[1] // n_kv_heads
        random = np.random.default_rng((SEED, layer.index, among.stop))
        for j in range(n_kv_heads):
            n = int(chosen.counts[j])
            tokens, weights = with_draws(chosen.lists[j, :n], among, k // 2 * group, random)
            chosen.counts[j] = len(tokens)
            chosen.lists[j, : len(tokens)] = tokens
            chosen.log_weights[j * group : (j + 1) * group, : len(tokens)] = weights
        return n_bytes


def with_draws(
    listed: np.ndarray, among: Range, most: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A list with up to `most` draws of the tokens of `among` that it lacks, ascending, and the
    log weights of all."""
    among_listed = listed[among.first : len(listed) - (among.stop - among.last)].astype(np.int64)
    left = among.last - among.first - len(among_listed)
    drawn = min(most, left)
    # Unlisted token number r lies behind as many listed ones as have at most r unlisted before.
    numbers = random.choice(left, drawn, replace=False, shuffle=False)
    before = among_listed - among.first - np.arange(len(among_listed))
    draws = among.first + numbers + np.searchsorted(before, numbers, side="right")
    tokens = np.concatenate([listed, draws.astype(np.uint32)])
    weights = np.zeros(len(tokens), np.float32)
    if drawn:
        weights[len(listed) :] = np.log(left / drawn)
    order = np.argsort(tokens, kind="stable")
    return tokens[order], weights[order]
