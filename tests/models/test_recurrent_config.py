"""Metadata of models whose layers carry states: what is read, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvarn.models import ModelConfig, ModelError
from kvarn.models.config.layers import DeltaNetConfig, Mamba2Config, ShortConvConfig
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights
from kvarn.ops.recurrent import DeltaHeads, ScanHeads

from . import plain
from .test_config import keys

DELTA, CONV, SCAN, ATTENTION = DeltaNetConfig, ShortConvConfig, Mamba2Config, None


def kinds(config: ModelConfig) -> list[type | None]:
    """The kind of each layer's state, None for layers with attention."""
    return [None if layer.state is None else type(layer.state) for layer in config.layers]


def parts(config: ModelConfig) -> list[str]:
    """Of each layer: attention, state, feed-forward."""
    return [
        "".join(
            letter
            for letter, part in zip("asf", (layer.attention, layer.state, layer.feed_forward))
            if part is not None
        )
        for layer in config.layers
    ]


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("qwen35", {}, [DELTA, ATTENTION] * 2),
        ("qwen35", {"full_attention_interval": 3}, [DELTA, DELTA, ATTENTION, DELTA]),
        (
            "qwen35",
            {"attention__recurrent_layers": [False, True, True, True]},
            [ATTENTION, DELTA, DELTA, DELTA],
        ),
        ("qwen35", {"nextn_predict_layers": 1}, [DELTA, ATTENTION, DELTA]),
        ("qwen3next", {}, [DELTA, DELTA, DELTA, ATTENTION]),
        ("lfm2", {}, [CONV, ATTENTION] * 2),
        ("granitehybrid", {}, [SCAN, ATTENTION, SCAN, SCAN]),
        (
            "lfm2",
            {"attention__head_count_kv": np.array([2, 2, 0, 0], np.int32)},
            [ATTENTION, ATTENTION, CONV, CONV],
        ),
    ],
)
def test_which_layers_carry_states(name: str, changes: Any, expected: list[type | None]) -> None:
    config = ModelConfig.from_metadata(keys(name, **changes))
    assert kinds(config) == expected
    assert config.n_kv_layers == expected.count(None)
    assert len(config.state_shapes) == len(expected) - expected.count(None)
    for kind, number in ((ATTENTION, config.attention_number), (DELTA, config.state_number)):
        of_kind = [i for i, x in enumerate(expected) if (x is None) == (kind is None)]
        assert [number(i) for i in of_kind] == list(range(len(of_kind)))


def test_sizes_of_states() -> None:
    config = ModelConfig.from_metadata(keys("qwen35-heads6"))
    mixer = config.layers[0].state
    assert mixer == DeltaNetConfig(DeltaHeads(2, 6, 40, 40, cyclic=1), 4, fused_gates=False)
    assert config.state_shapes[0] == ((3, 2 * 2 * 40 + 6 * 40), (6, 3, 40, 16))
    config = ModelConfig.from_metadata(keys("lfm2"))
    assert config.layers[0].state == ShortConvConfig(64, 3)
    assert config.state_shapes == (((2, 64),),) * 2
    config = ModelConfig.from_metadata(keys("granitehybrid-experts"))
    assert config.layers[0].state == Mamba2Config(ScanHeads(6, 17, 3, 33), 4, needs_norm=True)
    assert config.state_shapes == (((3, 6 * 17 + 2 * 3 * 33), (6, 2, 33, 16)),) * 2


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("granitehybrid", {}, ["sf", "af", "sf", "sf"]),
        ("nemotron_h", {}, ["s", "f", "a", "s", "f"]),
        ("nemotron_h_moe", {}, ["s", "f", "a", "f", "s", "a"]),
        # A last layer that drafts is left out; a length says that a layer has no attention.
        ("nemotron_h_moe", {"nextn_predict_layers": 1}, ["s", "f", "a", "f", "s"]),
        ("nemotron_h", {"attention__head_count_kv": [0, 2, 2, 0, 2]}, ["s", "f", "a", "s", "f"]),
        ("falcon-h1", {}, ["asf"] * 3),
    ],
)
def test_what_each_layer_has(name: str, changes: Any, expected: list[str]) -> None:
    config = ModelConfig.from_metadata(keys(name, **changes))
    assert parts(config) == expected
    assert config.n_kv_layers == sum("a" in x for x in expected)
    assert len(config.state_shapes) == sum("s" in x for x in expected)
    numbers = [(config.attention_number(i), config.state_number(i)) for i in range(len(expected))]
    assert numbers == [
        tuple(sum(kind in x for x in expected[:i]) for kind in "as") for i in range(len(expected))
    ]
    assert config.last_storing == max(i for i, x in enumerate(expected) if set(x) & {"a", "s"})


def test_feed_forwards_of_nemotron() -> None:
    config = ModelConfig.from_metadata(keys("nemotron_h"))
    assert [f and f.n_ff for f in (layer.feed_forward for layer in config.layers)] == [
        *(None, 96, None, None, 101)
    ]
    config = ModelConfig.from_metadata(keys("nemotron_h_moe", expert_feed_forward_length=None))
    experts = config.layers[1].feed_forward
    assert (experts.n_ff, experts.n_latent, experts.shared.n_ff) == (20, 0, 56)
    config = ModelConfig.from_metadata(keys("nemotron_h_moe-latent"))
    experts = config.layers[1].feed_forward
    assert (experts.n_ff, experts.n_latent, experts.routing.scale) == (40, 33, 1.5)
    rms = {"attention__layer_norm_rms_epsilon": None, "attention__layer_norm_epsilon": 2e-6}
    assert ModelConfig.from_metadata(keys("nemotron_h", **rms)).norm_eps == 2e-6


@pytest.mark.parametrize("name", ["granite", "granitemoe", "granitehybrid-experts"])
def test_factors_of_frequencies_are_those_of_the_scaling(name: str) -> None:
    for scaling, tensors in ((None, "freqs"), ("yarn", "freqs"), ("longrope", "longrope")):
        scaled = {"rope__scaling__type": scaling, "rope__scaling__factor": 2.0}
        scaled |= {"rope__scaling__original_context_length": 64}
        assert ModelConfig.from_metadata(keys(name, **scaled)).rope_tensors == tensors


@pytest.mark.parametrize("name", ["granite", "granitemoe", "granitehybrid-experts"])
def test_layers_rotate_unless_the_file_says_no(name: str) -> None:
    for flag in (None, True, False):
        config = ModelConfig.from_metadata(keys(name, rope__scaling__finetuned=flag))
        assert all((m.rope is None) == (flag is False) for m in config.attention_layers)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("qwen35", {"full_attention_interval": None}, "full_attention_interval is missing"),
        ("qwen35", {"full_attention_interval": 5}, "expected a layer with attention"),
        ("qwen35", {"full_attention_interval": 0}, "an integer from 1"),
        ("qwen35", {"attention__recurrent_layers": [True] * 3}, "a number for each of 4 layers"),
        ("qwen35", {"attention__recurrent_layers": ["a"] * 4}, "a number for each of 4 layers"),
        ("qwen35", {"attention__recurrent_layers": [True] * 4}, "expected a layer with attention"),
        ("qwen35", {"ssm__group_count": 3}, "a divisor of 2 value heads"),
        ("qwen35", {"ssm__inner_size": 33}, "2 heads of 16"),
        ("qwen35", {"ssm__state_size": None}, "ssm.state_size is missing"),
        ("qwen35", {"ssm__state_size": 1 << 20}, "an integer from 1 to 256"),
        ("qwen35", {"ssm__conv_kernel": 1}, "an integer from 2 to 8"),
        ("qwen35", {"ssm__time_step_rank": "2"}, "ssm.time_step_rank"),
        (
            "qwen3next",
            {"expert_feed_forward_length": np.array([24, 25], np.int32)},
            "one value for all layers",
        ),
        ("lfm2", {"attention__head_count_kv": 2}, "a number for each of 4 layers"),
        ("lfm2", {"attention__head_count_kv": [0, 2, 0]}, "a number for each of 4 layers"),
        ("lfm2", {"attention__head_count_kv": [0, 2, 0, 4]}, "0 or one other number"),
        ("lfm2", {"attention__head_count_kv": [0, -2, 0, -2]}, "numbers from 0"),
        ("lfm2", {"attention__head_count_kv": [0, 0, 0, 0]}, "0 or one other number"),
        ("lfm2", {"attention__head_count_kv": ["0", "x", [], {}]}, "0 or one other number"),
        ("lfm2", {"shortconv__l_cache": 9}, "an integer from 2 to 8"),
        ("granitehybrid", {"ssm__group_count": 3}, "a divisor of 8 heads"),
        ("granitehybrid", {"ssm__group_count": 0}, "an integer from 1"),
        ("granitehybrid", {"ssm__inner_size": 129}, "a multiple of 8 heads"),
        ("granitehybrid", {"ssm__state_size": 0}, "an integer from 1"),
        ("granitehybrid", {"ssm__time_step_rank": None}, "ssm.time_step_rank is missing"),
        ("granitehybrid", {"ssm__conv_kernel": 1}, "an integer from 2 to 8"),
        ("granitehybrid", {"attention__head_count_kv": [0] * 4}, "0 or one other number"),
        ("granitehybrid", {"attention__head_count_kv": 2}, "a number for each of 4 layers"),
        ("falcon-h1", {"ssm__group_count": 4}, "a divisor of 6 heads"),
        ("falcon-h1", {"ssm__state_size": 0}, "an integer from 1"),
        ("falcon-h1", {"attention__head_count_kv": 0}, "an integer from 1"),
        ("nemotron_h", {"feed_forward_length": 96}, "0 for a layer with attention"),
        ("nemotron_h", {"feed_forward_length": [0, 96]}, "integers from 0 to 1048576 for 5"),
        ("nemotron_h", {"feed_forward_length": [0, 96, 1, 0, 0]}, "0 for a layer with attention"),
        ("nemotron_h", {"attention__layer_norm_epsilon": None}, "layer_norm_epsilon is missing"),
        ("nemotron_h_moe", {"expert_used_count": 6}, "an integer from 1 to 5"),
        ("nemotron_h_moe-latent", {"moe_latent_size": -1}, "an integer from 0"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, changes: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        ModelConfig.from_metadata(keys(name, **changes))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen35", "blk.0.ssm_conv1d.weight"),
        ("qwen35", "blk.2.ssm_a"),
        ("qwen35", "blk.2.ssm_dt.bias"),
        ("qwen35", "blk.1.attn_q.weight"),
        ("qwen3next", "blk.0.ssm_ba.weight"),
        ("lfm2", "blk.0.shortconv.conv.weight"),
        ("lfm2", "token_embd_norm.weight"),
        ("granitehybrid", "blk.0.ssm_in.weight"),
        ("granitehybrid", "blk.0.ssm_d"),
        ("granitehybrid", "blk.2.ssm_norm.weight"),
        ("granitehybrid-experts", "blk.2.ssm_norm.weight"),
        ("nemotron_h", "blk.4.ffn_up.weight"),
        ("nemotron_h_moe", "blk.1.exp_probs_b.bias"),
        ("nemotron_h_moe", "blk.3.ffn_up_exps.weight"),
        ("nemotron_h_moe-latent", "blk.1.ffn_latent_up.weight"),
        ("falcon-h1", "blk.0.ssm_conv1d.weight"),
        ("falcon-h1", "blk.1.attn_q.weight"),
    ],
)
def test_tensors_of_other_shapes_are_refused(
    name: str, tensor: str, golden_models: Callable[[str], Any]
) -> None:
    golden = golden_models(name)
    config = ModelConfig.from_metadata(golden.metadata)
    arrays = dict(golden.arrays)
    Weights.load(plain.as_tensors(arrays), config)
    shape = arrays[tensor].shape
    arrays[tensor] = np.zeros((shape[0] + 2, *shape[1:]), np.float32)
    with pytest.raises(ModelError, match=f"tensor {tensor} has shape"):
        Weights.load(plain.as_tensors(arrays), config)
    del arrays[tensor]
    with pytest.raises(ModelError, match=f"tensor {tensor} is missing"):
        Weights.load(plain.as_tensors(arrays), config)


@pytest.mark.parametrize("name", ["granitehybrid", "granitehybrid-experts", "nemotron_h"])
def test_what_is_scanned_is_gated_and_normed_in_groups(
    name: str, golden_models: Callable[[str], Any]
) -> None:
    """With the file's epsilon. Oracle: the formula in float64."""
    golden, rng = golden_models(name), np.random.default_rng(0)
    config = replace(ModelConfig.from_metadata(golden.metadata), norm_eps=0.5)
    model = Transformer(config, Weights.load(plain.as_tensors(golden.arrays), config), 8)
    heads, rows = config.layers[0].state.heads, model._work.rows(0, 3)
    scanned, z = (rows.array(part, heads.inner) for part in ("scanned", "z"))
    for array in (scanned, z):
        array[:] = rng.normal(0, 1, array.shape)
    gated = scanned * (z / (1 + np.exp(-z.astype(np.float64))))
    groups = gated.reshape(3, heads.n_groups, -1)
    normed = groups / np.sqrt((groups**2).mean(-1, keepdims=True) + 0.5)
    norm, matrix = (golden.arrays[f"blk.0.ssm_{part}.weight"] for part in ("norm", "out"))
    expected = (normed.reshape(3, -1) * norm.ravel()) @ matrix.astype(np.float64).T
    out = np.empty((3, config.n_embd), np.float32)
    model._layers[0]._mixers[0].output(rows, out)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5 * expected.std())
