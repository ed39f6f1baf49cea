"""Measure the mean keys of a model, which `store.centre` subtracts from keys in 4 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..cache import Axes, open_cache
from ..store import Ram
from .token_reader import TokenReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...models.transformer import Transformer
    from ..loading.model_info import ModelInfo

N_TOKENS, N_FIRST = 256, 4
"""Tokens that are read, and how many first ones do not count: their keys are unlike the rest."""
SEED = 20_240_517


def measured_keys(model: ModelInfo, transformer: Transformer) -> NDArray[np.float32]:
    """Mean keys after rope, float32 (layers, J, E), of tokens drawn at random."""
    config = model.config
    n = min(N_TOKENS, config.n_ctx_train)
    ids = np.random.default_rng(SEED).integers(0, config.n_vocab, n).tolist()
    cache = open_cache(model, n, transformer.max_chunk, Axes(Ram()))
    reader, store = TokenReader(transformer, cache, model.tell), cache.store
    for chunk in reader.chunks(ids):
        reader.forward(chunk, n_out=1)
    layers = (
        store.device.read_kv(
            store.segments(i), store.layout, store.n_kv_heads, min(N_FIRST, n - 1), n
        )[0]
        for i in range(store.n_layers)
    )
    return np.stack([keys.mean(0) for keys in layers])
