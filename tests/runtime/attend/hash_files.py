"""Learned encoders with random weights, and their signatures by the paper's formula in NumPy."""

from itertools import pairwise

import numpy as np

from kvarn.models.config import ModelConfig
from kvarn.ops.reference.select import pack_bits
from kvarn.runtime.attend.encoders import Dense, Learned, LearnedLayer
from kvarn.runtime.attend.encoders.sidecar import widths_of
from kvarn.runtime.model import Model

HIDDEN = 32


def random_encoders(model: Model, bits: int = 32, seed: int = 0, hidden: int = HIDDEN) -> Learned:
    """Other networks for each head of each layer without a window."""
    rng, config = np.random.default_rng(seed), model.config
    layers = {
        i: LearnedLayer(
            _dense(rng, config, config.n_heads, widths_of(config.head_dim, hidden, bits)),
            _dense(rng, config, config.n_kv_heads, widths_of(config.head_dim, hidden, bits)),
        )
        for i, layer in enumerate(config.kv_layers)
        if layer.window is None
    }
    return Learned(bits, hidden, 4096, model.fingerprint, model.name, layers)


def _dense(rng, config: ModelConfig, n_heads: int, widths: tuple[int, ...]) -> tuple[Dense, ...]:
    return tuple(
        Dense(
            (rng.standard_normal((n_heads, b, a)) / np.sqrt(a)).astype(np.float16),
            (rng.standard_normal((n_heads, b)) / 8).astype(np.float32),
        )
        for a, b in pairwise(widths)
    )


def signatures(dense: tuple[Dense, ...], head: int, x: np.ndarray) -> np.ndarray:
    """Signs of W_3 silu(W_2 silu(W_1 x + b_1) + b_2) + b_3, or of W_1 x + b_1, in float64:
    uint64 of the rows of x."""
    y = x.astype(np.float64)
    for i, one in enumerate(dense):
        if i:
            y = y / (1 + np.exp(-y))
        y = y @ one.weight[head].T.astype(np.float64) + one.bias[head]
    return pack_bits(y)
