"""Several things wrong with a model at once: an error of one line, or logits, and little memory."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvarn.models import ModelConfig
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights
from kvarn.system.errors import KvarnError

from . import plain, tiny_models
from .tiny_cases import CASES

NAMES = (
    "laguna gpt-oss gemma4 gemma4-shared gemma4-experts qwen35 qwen3next qwen35moe lfm2 lfm2moe "
    "granitehybrid-experts glm4moe qwen2moe granitemoe ernie4_5-moe olmoe muse-glimmer "
    "stablelm-12b command-r-64 olmo2 nemotron_h_moe-latent falcon-h1"
).split()
BY_NAME = {case.name: case for case in CASES}
NUMBERS = st.sampled_from(
    [0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 17, 24, 1024, 1025, 1 << 20, (1 << 31) - 1]
)
VALUES = NUMBERS | st.lists(NUMBERS, max_size=6) | st.booleans() | st.floats() | st.text(max_size=4)
LIMIT = 1 << 30
"""Bytes of memory that a tiny model, sound or not, must not reach beyond what the process has."""


def spoil(data: st.DataObject, metadata: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Change, add or remove one key or one tensor."""
    prefix = f"{metadata['general.architecture']}."
    if data.draw(st.booleans()):
        known = sorted(key for key in metadata if key.startswith(prefix))
        key = data.draw(st.sampled_from([*known, *(prefix + key for key in ABSENT)]))
        if data.draw(st.integers(0, 4)) == 0:
            metadata.pop(key, None)
        else:
            metadata[key] = data.draw(VALUES)
        return
    name = data.draw(st.sampled_from(sorted(arrays)))
    values = arrays[name]
    match data.draw(st.sampled_from(["missing", "shape", "values", "other"])):
        case "missing":
            del arrays[name]
        case "shape":
            axis = data.draw(st.integers(0, values.ndim - 1))
            size = data.draw(
                st.sampled_from([0, 1, max(0, values.shape[axis] - 1), values.shape[axis] + 1])
            )
            shape = (*values.shape[:axis], size, *values.shape[axis + 1 :])
            arrays[name] = np.zeros(shape, np.float32)
        case "values":
            value = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 3e38, 0.0]))
            arrays[name] = np.full_like(values, value)
        case "other":
            arrays[data.draw(st.sampled_from(sorted(arrays)))] = values


ABSENT = (
    *("attention.recurrent_layers", "attention.shared_kv_layers", "attention.sliding_window"),
    *("attention.sliding_window_pattern", "expert_group_count", "expert_group_used_count"),
    *("expert_shared_count", "interleave_moe_layer_step", "leading_dense_block_count"),
    *("nextn_predict_layers", "rope.dimension_count_swa", "attention.key_length_swa"),
)


@pytest.mark.usefixtures("one_thread")
@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(name=st.sampled_from(NAMES), n=st.integers(1, 3), data=st.data())
def test_a_spoilt_model_is_refused_in_one_line_or_runs(
    name: str, n: int, data: st.DataObject
) -> None:
    metadata = tiny_models.metadata(BY_NAME[name])
    arrays = dict(tiny_models.tensors(BY_NAME[name], 1))
    for _ in range(n):
        spoil(data, metadata, arrays)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        config = ModelConfig.from_metadata(metadata)
        model = Transformer(config, Weights.load(plain.as_tensors(arrays), config), 16)
        for prompt in (True, False):
            hidden = model.forward(
                np.array([1, 3, 2], np.int32), 0, Silent(config), 64, prompt=prompt
            )
        model.logits(hidden, out := np.empty((3, config.n_vocab), np.float32))
        assert out.shape == (3, config.n_vocab)
    except KvarnError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < LIMIT


class Silent(plain.PlainAttention):
    """Attention that gives the values of a token itself; states as they are."""

    def __call__(self, layer: int, q: Any, k: Any, v: Any, out: np.ndarray) -> None:
        out[:] = q
