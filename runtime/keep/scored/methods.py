"""Keep methods that evict many tokens at once. Of equal scores, the earlier slot stays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ....ops.arrays import F32, I32
from ...methods import option
from ..base import KeepError
from .base import ScoredKeep, ScoredSlots, highest_of_heads


def newest(n: int, n_slots: int) -> NDArray[np.intp]:
    """The last n of n_slots slots."""
    return np.arange(n_slots - n, n_slots)


def pooled(scores: F32, width: int) -> F32:
    """The highest of the `width` scores (J, slots) around each, an odd number."""
    padded = np.pad(scores, [(0, 0), (width // 2, width // 2)])
    around = np.lib.stride_tricks.sliding_window_view(padded, width, 1)
    return np.asarray(around.max(-1))


def highest_and_newest(scores: F32, n_highest: int, n_newest: int) -> I32:
    """Slots that stay, ascending, int32 (J, …): the highest of scores (J, slots), and the newest,
    which come after those that have scores."""
    last = newest(n_newest, scores.shape[1] + n_newest)
    best = highest_of_heads(scores, n_highest)
    return np.concatenate([best, np.tile(last, (len(scores), 1))], 1).astype(np.int32)


@dataclass(frozen=True)
class H2O(ScoredKeep):
    """Half of the budget for the newest tokens, half for the highest sums over all queries.

    The sums grow while the prompt is read, so queries take no memory. Tokens that stay keep their
    sums. Scoring costs about as many products as attention to the prompt does. Source: Zhang et al.
    2023, with equal halves as there; they evict at each step.
    """

    name: ClassVar[str] = "h2o"
    summary: ClassVar[str] = (
        "after the prompt, the newest and those that all tokens attended to most, half each"
    )
    sums_all: ClassVar[bool] = True

    def choose(self, scores: F32, budget: int, seed: tuple[int, ...]) -> I32:
        n_newest = budget // 2
        others = scores[:, : scores.shape[1] - n_newest]
        return highest_and_newest(others, budget - n_newest, n_newest)


@dataclass(frozen=True)
class SnapKV(ScoredKeep):
    """The last `window` tokens stay, and their queries score the others.

    A token's score is the highest F of the `pooling` tokens around it, so that neighbours of what
    is attended to stay with it. Source: Li et al. 2024; their code has maximum and mean, their
    settings for long texts maximum over 7. Raises `KeepError` for a window below 1, for pooling
    over an even number, and for an `every` below the window.
    """

    name: ClassVar[str] = "snapkv"
    summary: ClassVar[str] = (
        "after the prompt, its last 64 and those that these attend to most, with their neighbours"
    )
    window: int = 64
    pooling: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1 or self.pooling < 1 or self.pooling % 2 == 0:
            raise KeepError(
                f"keep snapkv: a window of {self.window} and pooling over {self.pooling}, expected "
                "1 or more, and an odd number"
            )
        if 0 < self.every < self.window:
            raise KeepError(
                f"keep snapkv: every is {self.every}, fewer than the {self.window} tokens whose "
                f"queries score; use at least {self.window}"
            )

    @property
    def protected(self) -> int:
        return self.window

    def shortened(self, n_slots: int) -> SnapKV:
        return replace(self, budget=n_slots, window=min(self.window, n_slots // 2))

    def n_proxies(self, n_tokens: int, budget: int) -> int:
        return min(self.window, n_tokens)

    def choose(self, scores: F32, budget: int, seed: tuple[int, ...]) -> I32:
        others = scores[:, : scores.shape[1] - self.window]
        return highest_and_newest(pooled(others, self.pooling), budget - self.window, self.window)


@dataclass(frozen=True)
class TOVA(ScoredKeep):
    """The last query alone scores.

    Source: Oren et al. 2024, who evict a token at each step, and choose for all heads of a layer
    together; here each KV head chooses, once.
    """

    name: ClassVar[str] = "tova"
    summary: ClassVar[str] = "after the prompt, those that its last token attends to most"

    def n_proxies(self, n_tokens: int, budget: int) -> int:
        return min(1, n_tokens)


@dataclass(frozen=True)
class L2Norm(ScoredKeep):
    """Drops the keys of largest Euclidean norm, as stored; queries do not count.

    The first `sinks` and the last `recent` tokens stay whatever their norm. Source: Devoto et al.
    2024, who leave the first two layers whole; here all layers evict. HashEvict compares itself
    with it at 4 sinks and 10 recent tokens. Raises `KeepError` for negative numbers.
    """

    name: ClassVar[str] = "l2norm"
    summary: ClassVar[str] = "after the prompt, those with the shortest keys (no queries)"
    uses_queries: ClassVar[bool] = False
    sinks: int = option(0, "first tokens that stay in any case (default 0)", int)
    recent: int = option(0, "last tokens that stay in any case (default 0)", int)

    @property
    def protected(self) -> int:
        return self.sinks + self.recent

    def shortened(self, n_slots: int) -> L2Norm:
        return replace(self, budget=n_slots, sinks=0, recent=0)

    def scores(self, slots: ScoredSlots, n_held: int) -> F32:
        from ....ops.evict import key_norms

        store = slots.store
        centre = None if store.centre is None else store.centre[slots.layer]
        scores = -key_norms(
            store.segments(slots.layer), store.layout, n_held, store.n_kv_heads, centre
        )
        scores[:, : self.sinks] = scores[:, n_held - self.recent :] = np.inf
        return scores


@dataclass(frozen=True)
class KeepRandom(ScoredKeep):
    """Each KV head of each layer keeps tokens drawn uniformly. Raises `KeepError` for a negative
    seed."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "after the prompt, tokens drawn at random: a baseline for the others"
    uses_queries: ClassVar[bool] = False
    seed: int = 0

    def scores(self, slots: ScoredSlots, n_held: int) -> F32:
        return np.zeros((slots.store.n_kv_heads, n_held), np.float32)

    def choose(self, scores: F32, budget: int, seed: tuple[int, ...]) -> I32:
        rows = [
            np.random.default_rng((self.seed, *seed, head)).permutation(scores.shape[1])[:budget]
            for head in range(len(scores))
        ]
        return np.sort(np.stack(rows), 1).astype(np.int32)
