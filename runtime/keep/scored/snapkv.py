"""keep `snapkv`: the last tokens, and what they attend to with its neighbours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..base import KeepError
from .base import Scored
from .choosing import last, rows_of_best

if TYPE_CHECKING:
    from .base import F32, I32


@dataclass(frozen=True)
class SnapKV(Scored):
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
        if self.window < 1 or self.pooling < 1 or self.pooling % 2 == 0:
            raise KeepError(
                f"keep snapkv: a window of {self.window} and pooling over {self.pooling}, expected "
                "1 or more, and an odd number"
            )
        super().__post_init__()
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
        n_slots, side = scores.shape[1], self.pooling // 2
        others = scores[:, : n_slots - self.window]
        padded = np.pad(others, [(0, 0), (side, side)])
        pooled = np.lib.stride_tricks.sliding_window_view(padded, self.pooling, 1).max(-1)
        found = rows_of_best(pooled, budget - self.window)
        window = np.tile(last(self.window, n_slots), (len(scores), 1))
        return np.concatenate([found, window], 1).astype(np.int32)
