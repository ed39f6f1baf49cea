"""Metadata that no model has, and the words in which it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvarn.models import ModelConfig, ModelError

from .test_config import keys


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_count": None}, "llama.block_count is missing"),
        ({"block_count": 0}, "llama.block_count is 0, expected an integer from 1 to 512"),
        ({"block_count": 10**9}, "llama.block_count is 1000000000"),
        ({"embedding_length": "64"}, "llama.embedding_length is '64'"),
        ({"embedding_length": True}, "llama.embedding_length is True"),
        ({"embedding_length": 64.0}, "llama.embedding_length is 64.0"),
        ({"context_length": -1}, "llama.context_length is -1"),
        ({"attention__head_count": 0}, "llama.attention.head_count is 0"),
        ({"attention__head_count": [4, 2, 4]}, "one value for all layers"),
        ({"attention__head_count": []}, "one value for all layers"),
        ({"attention__head_count_kv": 3}, "llama.attention.head_count_kv is 3"),
        (
            {"attention__head_count": 128, "attention__key_length": None},
            "llama.attention.head_count is 128, expected at most n_embd = 64",
        ),
        ({"attention__key_length": 512}, "llama.attention.key_length is 512"),
        ({"attention__key_length": 15}, "llama.attention.key_length is 15"),
        ({"attention__value_length": 8}, "llama.attention.value_length is 8, expected 16"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, "is nan, expected a finite number"),
        ({"attention__layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is missing"),
        ({"attention__layer_norm_rms_epsilon": "small"}, "layer_norm_rms_epsilon is 'small'"),
        ({"rope__dimension_count": 8}, "llama.rope.dimension_count is 8, expected 16"),
        ({"rope__freq_base": 0.0}, "llama.rope.freq_base is 0.0"),
        ({"rope__scaling__type": "ntk"}, "llama.rope.scaling.type is 'ntk'"),
        ({"rope__scaling__type": 3}, "llama.rope.scaling.type is 3, expected a string"),
        ({"rope__scaling__factor": -2.0}, "llama.rope.scaling.factor is -2.0"),
        (
            {"expert_count": 8},
            "llama.expert_used_count is missing, expected an integer",
        ),
        ({"attention__causal": False}, "only causal models are supported"),
        ({"feed_forward_length": [1 << 40] * 3}, "llama.feed_forward_length is 1099511627776"),
    ],
)
def test_wrong_values_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as error:
        ModelConfig.from_metadata(keys("llama-mha", **changes))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("cohere2", {"attention__sliding_window": None}, "sliding_window is missing"),
        ("cohere2", {"logit_scale": None}, "cohere2.logit_scale is missing"),
        ("gemma2", {"attention__sliding_window": 0}, "gemma2.attention.sliding_window is 0"),
        ("gemma3", {"attention__sliding_window_pattern": [True]}, "one flag for each of 7 layers"),
        ("gemma3", {"attention__sliding_window_pattern": "all"}, "sliding_window_pattern is 'all'"),
        ("phi3", {"rope__dimension_count": 95}, "phi3.rope.dimension_count is 95"),
        ("qwen2", {"expert_count": 8}, "expert_count is 8, expected 0: this architecture has no"),
        ("qwen3moe", {"expert_count": None}, "expert_count is missing, expected an integer from 1"),
        ("qwen3moe", {"expert_count": 0}, "expert_count is 0, expected an integer from 1 to 1024"),
        ("qwen3moe", {"expert_count": 1025}, "qwen3moe.expert_count is 1025"),
        ("qwen3moe", {"expert_used_count": 0}, "expert_used_count is 0, expected an integer from"),
        ("qwen3moe", {"expert_used_count": 6}, "expert_used_count is 6, expected an integer from"),
        ("qwen3moe", {"expert_feed_forward_length": -1}, "expert_feed_forward_length is -1"),
        ("qwen3moe", {"expert_weights_scale": -1.0}, "qwen3moe.expert_weights_scale is -1.0"),
        ("qwen3moe", {"expert_group_count": 2}, "expert_group_count is 2, expected a divisor of 5"),
        (
            "qwen3moe",
            {"expert_group_count": 5, "expert_group_used_count": 1},
            "expert_group_used_count is 1, expected an integer from 2 to 5",
        ),
        ("ernie4_5-moe", {"leading_dense_block_count": "1"}, "leading_dense_block_count is '1'"),
        ("ernie4_5-moe", {"interleave_moe_layer_step": 2}, "only experts in all other layers"),
        ("ernie4_5-moe", {"feed_forward_length": None}, "feed_forward_length is missing"),
    ],
)
def test_wrong_values_of_other_architectures(
    name: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError) as error:
        ModelConfig.from_metadata(keys(name, **changes))
    assert words in str(error.value)


@pytest.mark.parametrize("kind", [np.array([1, 2]), ["adapter", "model"], 7, True])
def test_a_type_that_is_no_text_is_not_an_adapters(kind: object) -> None:
    metadata = {**keys("llama-mha"), "general.type": kind}
    assert ModelConfig.from_metadata(metadata) == ModelConfig.from_metadata(keys("llama-mha"))
    with pytest.raises(ModelError, match="the file is an adapter"):
        ModelConfig.from_metadata({**metadata, "general.type": "adapter"})
