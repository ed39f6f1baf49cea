"""A query head at one token: its attention, and the keys and codes that estimates of it read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kvarn.ops.arrays import F32, F64

from .estimators import Blocks, PlainTables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]

SINK, WINDOW = 4, 64
"""MagicPIG's, for all estimates."""
N_CENTRE = 16_384
"""Keys that a centre is the mean of: `runtime.attend.sparse.frame`."""


def centre_of(keys: F32, n: int) -> F32:
    """The mean of the first n keys but those of the sinks."""
    mean: F32 = keys[SINK:n].mean(0)
    return mean


def cosines(q: F32, keys: F32) -> F64:
    """Of a query (E,) and keys (n, E)."""
    lengths = np.linalg.norm(keys, axis=1) * np.linalg.norm(q)
    found: F64 = (keys @ q / np.maximum(lengths, 1e-12)).astype(np.float64)
    return found


def balanced(keys: F32) -> tuple[F32, F32]:
    """Matrices (E, E) for keys and for queries, which keep q · k and make angles differ by more:
    C^(-1/4) and C^(1/4), where C is the mean of k k^T (a thousandth of its trace added)."""
    c = (keys.T @ keys).astype(np.float64) / len(keys)
    c += np.eye(len(c)) * np.trace(c) / len(c) / 1000
    values, vectors = np.linalg.eigh(c)
    found = tuple(
        ((vectors * values**power) @ vectors.T).astype(np.float32) for power in (-0.25, 0.25)
    )
    return found[0], found[1]


@dataclass(frozen=True)
class Head:
    """A query head at one token: w, softmax weights (n,); values (n, E); the cosines of its draws;
    its KV head's blocks, and the weight of one token at each block's mean key."""

    w: F64
    values: F32
    cosine: F64
    blocks: Blocks
    block_w: F64

    @cached_property
    def exact(self) -> F64:
        found: F64 = self.w @ self.values
        return found

    def error(self, out: F64) -> float:
        return float(np.linalg.norm(out - self.exact) / np.linalg.norm(self.exact))

    def always(self, window: int = WINDOW) -> Bools:
        """Sinks and window."""
        n = len(self.w)
        tokens: Bools = np.arange(n) < SINK
        return tokens | (np.arange(n) >= n - window)

    def top(self, m: int) -> Bools:
        """Sinks, window and the m largest weights between."""
        tokens = self.always()
        between = np.where(tokens, -1.0, self.w)
        tokens[np.argpartition(-between, m)[:m]] = True
        return tokens

    def ratio(self, tokens: Bools, times: F64 | float = 1.0) -> F64:
        """Attention to some tokens, each counted so many times."""
        weights = np.where(tokens, self.w * times, 0.0)
        found: F64 = weights @ self.values / weights.sum()
        return found

    def with_means(self, tokens: Bools, times: F64 | None = None) -> F64:
        """The same, and of each block as many tokens at its means as are left of it."""
        weights = np.where(tokens, self.w if times is None else self.w * times, 0.0)
        left = self.blocks.counts(~self.always()) - self.blocks.counts(
            tokens & ~self.always(), times
        )
        rest = left * self.block_w
        sums = weights @ self.values + rest @ self.blocks.values
        found: F64 = sums / (weights.sum() + rest.sum())
        return found


class KeyHead:
    """Keys and values (n, E) of a KV head, and their codes under centres and seeds."""

    def __init__(
        self, keys: F32, values: F32, tables: Sequence[tuple[int, int]], seeds: int
    ) -> None:
        self.n = n = len(keys)
        head_dim = keys.shape[1]
        whole = min(n, N_CENTRE)
        centres = {
            "": centre_of(keys, whole),
            "early": centre_of(keys, max(whole // 16, 64)),
            "none": np.zeros(head_dim, np.float32),
        }
        self.centre = centres[""]
        self.basis = balanced(keys[SINK:whole] - self.centre)
        self.blocks = Blocks(keys, values)
        self.codes: dict[tuple[tuple[int, int], str], list[tuple[PlainTables, Any, F32]]] = {
            (shape, name): [
                (hashing, hashing.codes(keys - centre), centre)
                for hashing in (PlainTables(*shape, head_dim, seed) for seed in range(seeds))
            ]
            for shape in tables
            for name, centre in centres.items()
        }


def head_of(q: F32, keys: F32, values: F32, known: KeyHead, scale: float) -> Head:
    """A query (E,) with all stored keys and values (n, E)."""
    scores = (keys @ q).astype(np.float64) * scale
    mass = np.exp(scores - scores.max())
    means = np.exp(known.blocks.keys @ q * scale - scores.max()) / mass.sum()
    return Head(mass / mass.sum(), values, cosines(q, keys - known.centre), known.blocks, means)
