"""The centre: the mean key of each layer and KV head, subtracted before keys are stored in 4 bits.

    softmax_t(q · (k_t - c)) = softmax_t(q · k_t - q · c) = softmax_t(q · k_t)

A part of the keys that is the same for all tokens does not change attention, but it uses up some of
the few bits. In the default model's layers without positional encoding, it is two thirds of the
keys' energy; without it, rounding costs a third. (SageAttention subtracts the mean before it
quantises K: Zhang et al. 2024, section 4.2. It takes the mean of the keys at hand; a cache that
grows needs one that is known before its first token.)

So c depends on the model alone: the mean over the first tokens of a context whose ids are drawn
uniformly at random (`context.measuring`). It is computed once per machine (`ModelInfo.measured`). A
pack keeps the one that it was made with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...models.config.bounds import MAX_WHOLE_HEAD_DIM
from ...ops.arrays import F32

if TYPE_CHECKING:
    from ...models.config import ModelConfig
    from ..loading.model_info import ModelInfo


def has_centre(config: ModelConfig, k_type: str) -> bool:
    """Whether keys are stored without their mean: in 4 bits, unless a constant on all scores would
    change the softmax, because they are capped or compared with a sink's, or layers differ in the
    size of a key, or a key is also a value."""
    long_rows = config.head_dim > MAX_WHOLE_HEAD_DIM
    changes = long_rows or any(x.attention_softcap or x.sinks for x in config.kv_layers)
    return k_type == "q4_0" and not changes and config.one_geometry


def mean_keys(model: ModelInfo) -> F32:
    """The mean keys after rope, float32 (layers, J, E); measured if this machine has not done so
    before."""
    purpose = "whose mean is subtracted from keys stored in 4 bits"
    return model.measured("keys", model.measure_keys, purpose)
