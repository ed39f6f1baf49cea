"""What contexts read in tests of the runtime."""

import numpy as np

from kvarn.runtime.attend import Attend
from kvarn.runtime.context import Context
from kvarn.runtime.model import Model
from lab.peers.model import Shape

SHAPE = Shape(n_layers=2, n_embd=128, n_heads=4, n_kv_heads=2, head_dim=32, n_ff=96, n_vocab=512)
"""Of a tiny model whose heads are wide enough for every index."""


def ids_of(model: Model, n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, model.config.n_vocab, n).tolist()


def read(model: Model, attend: Attend, n: int, steps: int, **options) -> tuple[Context, np.ndarray]:
    """A context after n tokens and some decoded ones, and the logits of each of those."""
    ids = ids_of(model, n + steps)
    context = model.context(n + steps, attend, **options)
    context.prefill(ids[:n])
    return context, np.stack([context.decode(token).copy() for token in ids[n:]])
