"""Metadata key by key, against what llama.cpp's converter writes for the same config.json.

Expectations were worked out from its rules and compared once with files that it made (0.3.36).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvarn.convert.errors import ConvertError
from kvarn.convert.hf.architectures import architecture_of, check
from kvarn.convert.hf.config import Config
from kvarn.convert.hf.metadata.rope import llama3_factors, long_factors
from kvarn.convert.hf.table import HF_ARCHITECTURES
from kvarn.models import ModelConfig
from kvarn.models.errors import ModelError

from .configurations import CASES as FIRST
from .configurations import RMS, common, heads, sizes
from .other_configurations import OTHERS

CASES = FIRST | OTHERS
DEFAULTS = Path(__file__).parents[2] / "convert" / "hf" / "defaults.json"


def keys_of(values: dict[str, Any]) -> dict[str, Any]:
    """The architecture's keys for a config.json, without its prefix."""
    architecture = architecture_of(values)
    config = Config(values, architecture.defaults)
    check(architecture, config)
    writer = gguf.GGUFWriter(None, architecture.name)
    architecture.add_keys(writer, config)
    written = {key: value.value for key, value in writer.kv_data[0].items()}
    assert written.pop("general.architecture") == architecture.name
    assert all(key.startswith(f"{architecture.name}.") for key in written)
    return {key.removeprefix(f"{architecture.name}."): value for key, value in written.items()}


QWEN25_05B = sizes(24, 32768, 896, 4864, 14, 2) | {"rope.freq_base": 1e6, RMS: 1e-6}
QWEN25_7B = sizes(28, 32768, 3584, 18944, 28, 4) | {"rope.freq_base": 1e6, RMS: 1e-6}
QWEN25_32B = sizes(64, 131072, 5120, 27648, 40, 8) | {"rope.freq_base": 1e6, RMS: 1e-6}
QWEN3_8B = sizes(36, 40960, 4096, 12288, 32, 8) | {"rope.freq_base": 1e6, RMS: 1e-6} | heads(128)
QWEN3_EMBEDDING = (
    sizes(28, 32768, 1024, 3072, 16, 8) | {"rope.freq_base": 1e6, RMS: 1e-6} | heads(128)
)
MISTRAL = (
    sizes(32, 32768, 4096, 14336, 32, 8)
    | {"rope.freq_base": 1e6, RMS: 1e-5, "vocab_size": 32768, "rope.dimension_count": 128}
    | heads(128)
)
PHI4 = sizes(40, 16384, 5120, 17920, 40, 10) | {
    "rope.scaling.original_context_length": 16384,
    "rope.freq_base": 250000.0,
    "rope.dimension_count": 128,
    RMS: 1e-5,
    "attention.sliding_window": 0,
}


# attention_factor is the one that readers work out.
OLMO31 = sizes(64, 65536, 5120, 27648, 40, 8) | {
    RMS: 1e-6,
    "rope.freq_base": 5e5,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 8192,
    "rope.scaling.yarn_beta_fast": 32,
    "rope.scaling.yarn_beta_slow": 1,
    "attention.sliding_window": 4096,
    "attention.sliding_window_pattern": [True, True, True, False] * 16,
}


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen2.5-0.5B-Instruct", QWEN25_05B),
        ("Qwen2.5-7B-Instruct", QWEN25_7B),
        ("Qwen2.5-32B-Instruct", QWEN25_32B),
        ("Qwen3-8B", QWEN3_8B),
        ("Qwen3-Embedding-0.6B", QWEN3_EMBEDDING),
        ("Mistral-7B-Instruct-v0.3", MISTRAL),
        ("phi-4", PHI4),
        ("Olmo-3.1-32B-Instruct", OLMO31),
    ],
)
def test_published_configurations(name: str, expected: dict[str, Any], data_dir: Path) -> None:
    path = data_dir / "hf-configs" / name / "config.json"
    assert keys_of(json.loads(path.read_text())) == expected


def test_defaults_are_those_of_the_table() -> None:
    listed = json.loads(DEFAULTS.read_text(encoding="utf-8"))
    names = [name for several in listed for name in several.split()]
    assert sorted(names) == sorted(HF_ARCHITECTURES)


@pytest.mark.parametrize("name", CASES)
def test_every_key(name: str) -> None:
    values, expected = CASES[name]
    assert keys_of(values) == expected


def test_factors_of_llama_3_blend_between_two_wavelengths() -> None:
    values, _ = CASES["llama 3.1"]
    config = Config(values, architecture_of(values).defaults)
    factors = llama3_factors(config)
    assert factors is not None and factors.shape == (16,)
    expected = []
    for i in range(16):  # Llama's own loop, in float64
        wavelength = 2 * math.pi * 5e5 ** (2 * i / 32)
        if wavelength < 512 / 4.0:
            expected.append(1.0)
        elif wavelength > 512 / 1.0:
            expected.append(8.0)
        else:
            smooth = (512 / wavelength - 1.0) / (4.0 - 1.0)
            expected.append(1 / ((1 - smooth) / 8.0 + smooth))
    np.testing.assert_allclose(factors, expected, rtol=1e-6)
    assert factors[0] == 1 and factors[-1] == 8 and 1 < factors[4] < 8


def test_long_factors_are_those_of_the_configuration() -> None:
    values, _ = CASES["phi 3.5 with long factors"]
    factors = long_factors(Config(values, architecture_of(values).defaults))
    assert factors is not None
    np.testing.assert_array_equal(factors.long, [2.0] * 16)
    np.testing.assert_array_equal(factors.short, [1.0] * 16)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
REFUSED = {
    "unknown to kvarn, expected one of Llama": {"architectures": ["MambaForCausalLM"]},
    "quantised .'gptq'": common("LlamaForCausalLM", quantization_config={"quant_method": "gptq"}),
    "activation is 'relu', expected silu": common("LlamaForCausalLM", hidden_act="relu"),
    "rope_type is 'dynamic', expected default, linear, yarn, llama3, longrope for a llama": common(
        "LlamaForCausalLM", rope_scaling={"type": "dynamic", "factor": 2}
    ),
    "rope_type is 'llama3', expected default, linear, yarn for a qwen2 file": common(
        "Qwen2ForCausalLM", rope_scaling={"rope_type": "llama3", "factor": 8.0}
    ),
    "rope_type is 'linear', expected default, longrope for a phi3 file": common(
        "Phi3ForCausalLM", rope_scaling={"rope_type": "linear", "factor": 8.0}
    ),
    "rope_type is 'proportional'": common(
        "Gemma3ForCausalLM", rope_scaling={"rope_type": "proportional", "factor": 8.0}
    ),
    "rope_type is 'longrope', expected default, linear, yarn for a qwen3 file": common(
        "Qwen3ForCausalLM", rope_scaling={"rope_type": "longrope"}
    ),
    "rope_type is .'yarn'.": common("LlamaForCausalLM", rope_scaling={"rope_type": ["yarn"]}),
    "cohere2 does not have": common("Cohere2ForCausalLM", rope_scaling=YARN),
    "truncate is false, expected true": common(
        "LlamaForCausalLM", rope_scaling=YARN | {"truncate": False}
    ),
    "extrapolation_factor is 0.5, expected 1": common(
        "LlamaForCausalLM", rope_scaling=YARN | {"extrapolation_factor": 0.5}
    ),
    "attn_factor is 2, expected 1": common(
        "LlamaForCausalLM", rope_scaling=YARN | {"attn_factor": 2}
    ),
    "beta_fast is -1.0, expected a number from 0.001": common(
        "LlamaForCausalLM", rope_scaling=YARN | {"beta_fast": -1}
    ),
    "attention_factor is -2.0, expected a number from 0": common(
        "LlamaForCausalLM", rope_scaling=YARN | {"attention_factor": -2}
    ),
    "mscale_all_dim is 'all', expected a number": common(
        "LlamaForCausalLM", rope_scaling=YARN | {"mscale": 1.0, "mscale_all_dim": "all"}
    ),
    "mscale_all_dim is -1.0, expected a number from 0 to 1000": common(
        "Ministral3ForCausalLM",
        model_type="ministral3",
        rope_parameters=YARN | {"rope_theta": 1e6, "mscale_all_dim": -1},
    ),
    "amplitude of 1, expected 1.13863: a gemma3 file": common(
        "Gemma3ForCausalLM", rope_scaling=YARN | {"attention_factor": 1.0}
    ),
    "factor is 0.0, expected a number from 1e-06": common(
        "LlamaForCausalLM", rope_scaling={"rope_type": "linear", "factor": 0}
    ),
    "partial_rotary_factor is 0.5 with rope_type yarn": common(
        "LlamaForCausalLM", rope_scaling=YARN, partial_rotary_factor=0.5
    ),
    "partial_rotary_factor is 0.5 with rope_type linear, expected 1 for a gemma2 file": common(
        "Gemma2ForCausalLM",
        rope_parameters={"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
        query_pre_attn_scalar=256,
    ),
    "differ by kind of layer, which a qwen3 file cannot say": common(
        "Qwen3ForCausalLM", rope_parameters={"full_attention": YARN, "sliding_attention": {}}
    ),
    "rope_type of sliding_attention is 'linear', expected default": common(
        "Gemma3ForCausalLM",
        rope_parameters={"full_attention": {}, "sliding_attention": {"type": "linear"}},
    ),
    "full_attention is 7, expected an object": common(
        "Gemma3ForCausalLM", rope_parameters={"full_attention": 7}
    ),
    "rope_scaling is 'yarn', expected an object": common("LlamaForCausalLM", rope_scaling="yarn"),
    "factor is missing, expected a number": common(
        "LlamaForCausalLM", rope_scaling={"type": "linear"}
    ),
    "hidden_size is 'wide', expected a whole number": common(
        "LlamaForCausalLM", hidden_size="wide"
    ),
    "num_hidden_layers is missing": {"architectures": ["LlamaForCausalLM"]},
    "text_config is 7, expected an object": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": 7,
    },
    "no_rope_layers": common("SmolLM3ForCausalLM", no_rope_layers=[1] * 6),
    "query_pre_attn_scalar is 144: a gemma2 file of 6 layers means 256": common(
        "Gemma2ForCausalLM", query_pre_attn_scalar=144
    ),
    "attn_logit_softcapping": common("Gemma3ForCausalLM", attn_logit_softcapping=50.0),
    "use_bidirectional_attention": common("Gemma3ForCausalLM", use_bidirectional_attention=True),
    "layer_types has 'chunked'": common("Gemma3ForCausalLM", layer_types=["chunked"] * 6),
    "layer_types does not name 6 layers": common("Cohere2ForCausalLM", layer_types=[]),
    "6 of 6 layers have windows: an exaone4 file has them in 64 layers": common(
        "Exaone4ForCausalLM", layer_types=["sliding_attention"] * 6
    ),
    "mrope_section is 'wide', expected sizes": common(
        "Qwen3VLForConditionalGeneration", rope_scaling={"mrope_section": "wide"}
    ),
    "rope_theta of sliding_attention is 7.0, expected that of all layers": common(
        "Olmo3ForCausalLM",
        rope_parameters={"full_attention": {}, "sliding_attention": {"rope_theta": 7.0}},
    ),
    "alpha 0: expected more than 0": common(
        "HunYuanDenseV1ForCausalLM", rope_scaling={"type": "dynamic", "alpha": 0.0}
    ),
    "heads of 2 with alpha": common(
        "HunYuanDenseV1ForCausalLM", head_dim=2, rope_scaling={"type": "dynamic", "alpha": 9.0}
    ),
    "layer_rope_theta is .1.0.*layers with a window rotate by 500000, and no others": common(
        "MuseGlimmerForConditionalGeneration", rope_theta=5e5, layer_rope_theta=[1.0] * 6
    ),
    "post_norm_eps is 1e-05, expected 1e-08": common(
        "MuseGlimmerForConditionalGeneration", post_norm_eps=1e-5
    ),
    "command-r does not have": common("CohereForCausalLM", rope_scaling=YARN),
    "activation is 'gelu', expected relu2": common("NemotronForCausalLM", hidden_act="gelu"),
    "long_factor is .1.0., expected 16 numbers": common(
        "Phi3ForCausalLM", rope_scaling={"type": "su", "long_factor": [1.0], "short_factor": []}
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_a_file_cannot_say_is_refused(message: str) -> None:
    with pytest.raises(ConvertError, match=message):
        keys_of(REFUSED[message])


FIXED = [(name, key) for name, entry in HF_ARCHITECTURES.items() for key in entry.fixed]


@pytest.mark.parametrize(("name", "key"), FIXED)
def test_an_explicit_null_is_false_or_none_and_no_other_value(name: str, key: str) -> None:
    """Models test such a setting by its truth, and a null takes the place of the default."""
    architecture, values = HF_ARCHITECTURES[name], common(name)
    values.pop(key, None)
    check(architecture, Config(values, architecture.defaults))
    null = Config({**values, key: None}, architecture.defaults)
    if not architecture.fixed[key]:
        check(architecture, null)
        return
    with pytest.raises(ConvertError, match=f"{key} is null, expected "):
        check(architecture, null)


@pytest.mark.parametrize("name", CASES)
def test_kvarn_reads_what_it_writes(name: str) -> None:
    values, _ = CASES[name]
    architecture = architecture_of(values)
    prefixed = {f"{architecture.name}.{key}": v for key, v in keys_of(values).items()}
    metadata = {"general.architecture": architecture.name, **prefixed}
    metadata["tokenizer.ggml.tokens"] = ["x"] * 10
    try:
        config = ModelConfig.from_metadata(metadata)
    except ModelError as error:
        pytest.fail(str(error))
    assert config.n_layers == prefixed[f"{architecture.name}.block_count"]
