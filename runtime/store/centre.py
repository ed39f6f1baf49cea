"""What keys in 4 bits are stored without: the mean key of each layer and KV head.

    softmax_t(q · (k_t - c)) = softmax_t(q · k_t - q · c) = softmax_t(q · k_t)

A constant part of the keys, the same for all tokens, changes no attention, but it takes its share
of the few bits: of the default model's keys in layers without positions two thirds of the energy
are constant, and without it what rounding costs falls to a third. (SageAttention smooths K so
before it quantises: Zhang et al. 2024, section 4.2. There the mean is that of the keys at hand; a
cache that grows needs one that is known before its first token.)

So c is the model's own: the mean over tokens drawn at random, all ids alike, as the first of a
context (`context.mean_keys`). It is a function of the model alone, computed once per machine
(`keys-FINGERPRINT.means`: float32, little-endian, (layers, J, E)); packs keep the one that they
were made with.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...jit import kernel_cache

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...models.config import ModelConfig
    from ..loading.model_info import ModelInfo

    F32 = NDArray[np.float32]


def has_centre(config: ModelConfig, k_type: str) -> bool:
    """Whether keys are stored without their mean: in 4 bits, where scores are not capped, for a cap
    sees a constant."""
    return k_type == "q4_0" and not any(layer.attention_softcap for layer in config.layers)


def mean_keys(model: ModelInfo) -> F32:
    """The mean keys after rope, float32 (layers, J, E); the model reads tokens where this machine
    does not know them."""
    config = model.config
    shape = config.n_layers, config.n_kv_heads, config.head_dim
    name = f"keys-{model.fingerprint}.means"

    def parse(data: bytes) -> F32:
        if len(data) != 4 * prod(shape):
            raise kernel_cache.Damaged(f"{name}: expected {prod(shape)} numbers")
        return np.frombuffer(data, "<f4").astype(np.float32).reshape(shape)

    if (found := kernel_cache.find(name, parse)) is not None:
        return found
    model.tell(
        f"measuring the mean keys of {model.name}, which its keys in 4 bits are stored without "
        "(first use on this machine)"
    )
    means = model.measure_keys()
    kernel_cache.keep(name, means.astype("<f4").tobytes())
    return means
