"""Texts that are cut into calls at random."""

from collections.abc import Iterator

import numpy as np


def cuts(n_tokens: int) -> Iterator[list[int]]:
    """Borders of 1 to 5 calls, at random and beside multiples of 64; and of single tokens."""
    rng = np.random.default_rng(n_tokens)
    for parts in range(1, 6):
        inner = rng.choice(np.arange(1, n_tokens), parts - 1, replace=False)
        yield [0, *sorted(inner.tolist()), n_tokens]
    yield [0, 1, 63, 64, 65, n_tokens]
    yield [*range(n_tokens + 1)]


def random(*shape: int, seed: int = 0, size: float = 1.0) -> np.ndarray:
    """Normal float32 numbers."""
    rng = np.random.default_rng([seed, *shape])
    return (size * rng.standard_normal(shape)).astype(np.float32)
