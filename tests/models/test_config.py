"""Metadata to configuration: what is read, and what is refused in which words."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.models import ARCHITECTURES, ModelConfig, ModelError
from kvarn.models.config.layers import DenseConfig, ExpertsConfig
from kvarn.ops.experts import Routing

from .tiny_cases import CASES
from .tiny_models import metadata

BY_NAME = {case.name: case for case in CASES}


def keys(name: str, **changes: Any) -> dict[str, Any]:
    """A tiny model's metadata with keys changed, or removed by None (`__` stands for a dot)."""
    values = metadata(BY_NAME[name])
    prefix = BY_NAME[name].architecture
    for key, value in changes.items():
        full = f"{prefix}.{key.replace('__', '.')}"
        if value is None:
            values.pop(full, None)
        else:
            values[full] = value
    return values


def test_every_architecture_has_a_tiny_model() -> None:
    assert {case.architecture for case in CASES} == set(ARCHITECTURES)


def test_sizes_and_defaults() -> None:
    values = keys(
        "llama-mha",
        attention__head_count_kv=None,
        attention__key_length=None,
        attention__value_length=None,
        rope__dimension_count=None,
    )
    config = ModelConfig.from_metadata(values)
    assert (config.n_heads, config.n_kv_heads, config.head_dim) == (4, 4, 16)
    assert (config.n_embd, config.n_vocab, config.n_layers) == (64, 97, 3)
    assert {layer.feed_forward.n_ff for layer in config.layers} == {96}
    layer = config.kv_layers[0]
    assert layer.rope is not None
    assert (layer.rope.n_rot, layer.rope.base, layer.rope.scale) == (16, 10_000.0, 1.0)
    assert (layer.window, layer.attention_scale, layer.attention_softcap) == (None, 0.25, 0.0)


def test_number_arrays_of_one_value_and_numpy_numbers_are_numbers() -> None:
    values = keys(
        "llama-mha",
        attention__head_count=np.array([4, 4, 4], np.int32),
        block_count=np.uint32(3),
        attention__layer_norm_rms_epsilon=np.float32(1e-5),
    )
    assert ModelConfig.from_metadata(values).n_heads == 4


@pytest.mark.parametrize(
    ("name", "windows", "rotated"),
    [
        ("gemma2", [16, None, 16, None], [True] * 4),
        ("gemma3", [16] * 5 + [None, 16], [True] * 7),
        ("gemma3-pattern", [None, 7, 7, None], [True] * 4),
        ("gemma3-dense", [None] * 3, [True] * 3),
        ("cohere2", [12, 12, 12, None, 12], [True, True, True, False, True]),
        ("cohere2-period", [24, None, 24, None], [True, False, True, False]),
        ("smollm3", [None] * 5, [True, True, True, False, True]),
        ("phi3-window", [None] * 3, [True] * 3),
        ("olmo2-window", [12, 12, 12, None, 12], [True] * 5),
        ("exaone4", [None] * 3, [True] * 3),
        ("muse-glimmer", [12, 12, 12, None, 12], [True, True, True, False, True]),
        ("muse-glimmer-pattern", [None, 9, 9, None], [False, True, True, False]),
        ("exaone4-64", [20, 20, 20, None] * 16, [True, True, True, False] * 16),
    ],
)
def test_which_layers_are_windowed_and_rotated(
    name: str, windows: list[int | None], rotated: list[bool]
) -> None:
    config = ModelConfig.from_metadata(metadata(BY_NAME[name]))
    assert [layer.window for layer in config.kv_layers] == windows
    assert [layer.rope is not None for layer in config.kv_layers] == rotated


def test_gemma3_rotates_windowed_layers_by_their_own_unscaled_base() -> None:
    config = ModelConfig.from_metadata(metadata(BY_NAME["gemma3"]))
    local, distant = config.kv_layers[0].rope, config.kv_layers[5].rope
    assert local is not None and distant is not None
    assert (local.base, local.scale) == (10_000.0, 1.0)
    assert (distant.base, distant.scale) == (1e6, 0.125)


def test_yarn_leaves_the_amplitude_of_unscaled_windowed_layers() -> None:
    """llama.cpp's ggml multiplies it by 1 + 0.1 ln(factor), which is 1 in windowed layers."""
    values = keys("gemma3", rope__scaling__type="yarn", rope__scaling__attn_factor=0.9)
    config = ModelConfig.from_metadata(values)
    local, distant = config.kv_layers[0].rope, config.kv_layers[5].rope
    assert local is not None and distant is not None
    assert local.amplitude == 0.9
    assert distant.amplitude == pytest.approx(0.9 * (1 + 0.1 * math.log(8)))


def test_windowed_layers_that_know_one_base_do_not_read_another() -> None:
    for name in ("cohere2", "olmo2-window", "exaone4-64"):
        rope = ModelConfig.from_metadata(keys(name, rope__freq_base_swa=3e4)).kv_layers[0].rope
        assert rope is not None and rope.base == 10_000.0


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("granite", {"logit_scale": None}, "granite.logit_scale is missing"),
        ("granite", {"logit_scale": 0.0}, "granite.logit_scale is 0.0, expected"),
        ("granite", {"attention__scale": "x"}, "granite.attention.scale is 'x'"),
        ("granite", {"rope__scaling__finetuned": 0}, "finetuned is 0, expected true or false"),
        ("hunyuan-dense", {"rope__scaling__alpha": 1e6, "rope__freq_base": 1e9}, "a base from"),
    ],
)
def test_scales_are_checked(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        ModelConfig.from_metadata(keys(name, **changes))


@pytest.mark.parametrize("name", ["llama-yarn", "qwen2-yarn", "mistral3"])
def test_the_betas_of_yarn_are_those_of_the_file(name: str) -> None:
    betas = {"rope__scaling__yarn_beta_fast": 8.0, "rope__scaling__yarn_beta_slow": 2.0}
    rope = ModelConfig.from_metadata(keys(name, **betas)).kv_layers[0].rope
    assert rope is not None
    assert (rope.beta_fast, rope.beta_slow) == (8.0, 2.0)


def test_a_window_of_zero_layers_per_period_means_all() -> None:
    config = ModelConfig.from_metadata(keys("gemma2", attention__sliding_window_pattern=0))
    assert [layer.window for layer in config.kv_layers] == [16] * 4


def test_which_layers_have_experts_and_of_which_sizes() -> None:
    layers = ModelConfig.from_metadata(metadata(BY_NAME["ernie4_5-moe"])).layers
    dense, *others = (layer.feed_forward for layer in layers)
    routing = Routing(5, 2, normalised=True)
    experts = ExpertsConfig(40, routing, "optional", shared=DenseConfig(56))
    assert (dense, others) == (DenseConfig(96), [experts] * 3)
    mixtral = ModelConfig.from_metadata(metadata(BY_NAME["llama-experts"])).layers[0]
    assert mixtral.feed_forward == ExpertsConfig(96, routing, "none", shared=None)
    plain = ModelConfig.from_metadata(keys("llama-mha", expert_count=0)).layers[0]
    assert plain.feed_forward == DenseConfig(96)


def test_keys_that_files_may_omit_have_llama_cpps_defaults() -> None:
    layer = ModelConfig.from_metadata(keys("qwen3moe", expert_feed_forward_length=None)).layers[0]
    assert layer.feed_forward.n_ff == 96 // 2
    values = keys("ernie4_5-moe", expert_shared_feed_forward_length=None, expert_shared_count=3)
    assert ModelConfig.from_metadata(values).layers[1].feed_forward.shared == DenseConfig(3 * 40)
    values = keys("ernie4_5-moe", expert_shared_feed_forward_length=0, expert_weights_scale=0.5)
    experts = ModelConfig.from_metadata(values).layers[1].feed_forward
    assert (experts.shared, experts.routing.scale) == (None, 0.5)
    grouped = keys("qwen3moe", expert_group_count=5, expert_group_used_count=3)
    routing = ModelConfig.from_metadata(grouped).layers[0].feed_forward.routing
    assert (routing.n_groups, routing.n_groups_used, routing.scale) == (5, 3, 1.0)


def test_layers_that_draft_tokens_are_left_out() -> None:
    config = ModelConfig.from_metadata(metadata(BY_NAME["glm4moe-norms"]))
    assert (config.n_layers, len(config.layers), config.n_drafting) == (3, 3, 1)
    with pytest.raises(ModelError, match="nextn_predict_layers is 4, expected an integer from 0"):
        ModelConfig.from_metadata(keys("glm4moe-norms", nextn_predict_layers=4))


def test_files_say_how_tokens_choose_where_the_architecture_lets_them() -> None:
    def routing(**changes: Any) -> Routing:
        layer = ModelConfig.from_metadata(keys("glm4moe", **changes)).layers[1]
        return layer.feed_forward.routing

    assert routing() == Routing(5, 2, "sigmoid", normalised=True, scale=1.5)
    assert routing(expert_gating_func=None).scores == "sigmoid"
    assert routing(expert_gating_func=1).scores == "softmax"
    assert routing(expert_gating_func=3).scores == "softmax-of-chosen"
    assert not routing(expert_weights_norm=None).normalised
    with pytest.raises(ModelError, match=r"expert_gating_func is 4, expected 1 \(softmax\), 2"):
        routing(expert_gating_func=4)
    with pytest.raises(ModelError, match="expert_weights_norm is 1, expected true or false"):
        routing(expert_weights_norm=1)


def test_an_unsupported_architecture_is_named_with_the_supported_ones() -> None:
    with pytest.raises(ModelError, match=r"is 'mamba', supported are .*cohere2, .*smollm3"):
        ModelConfig.from_metadata({"general.architecture": "mamba"})
    with pytest.raises(ModelError, match=r"general\.architecture is missing"):
        ModelConfig.from_metadata({})


def test_the_vocabulary_is_the_list_of_tokens_or_its_stated_size() -> None:
    values = keys("llama-mha", vocab_size=1234)
    assert ModelConfig.from_metadata(values).n_vocab == 97
    del values["tokenizer.ggml.tokens"]
    assert ModelConfig.from_metadata(values).n_vocab == 1234
    values["tokenizer.ggml.tokens"] = 97
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.tokens is 97, expected a list"):
        ModelConfig.from_metadata(values)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-2, 9), max_size=8),
    st.lists(st.text(max_size=3), max_size=3),
    st.lists(st.floats(), max_size=3).map(np.array),
)


@given(name=st.sampled_from(sorted(BY_NAME)), data=st.data())
def test_any_value_of_any_key_gives_a_configuration_or_a_model_error(
    name: str, data: st.DataObject
) -> None:
    values = metadata(BY_NAME[name])
    for key in data.draw(st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=3)):
        values[key] = data.draw(ANYTHING)
    try:
        config = ModelConfig.from_metadata(values)
    except ModelError as error:
        assert "\n" not in str(error)
    else:
        assert 1 <= config.n_layers <= 512 and config.head_dim <= 512


def test_reading_a_configuration_imports_no_numba() -> None:
    code = "import sys, kvarn.models; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
