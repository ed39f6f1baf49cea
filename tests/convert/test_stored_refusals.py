"""Mixtures and hybrids whose folders are incomplete, or ask for what a file cannot say."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import gguf
import pytest

from kvarn.convert.errors import ConvertError
from kvarn.convert.hf import convert
from kvarn.convert.quantize.mixes import mix_of

from . import vocabularies
from .hf_folders import write_safetensors
from .stored_models import Stored, weights

EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"
SCALES = "model.layers.1.mlp.experts.gate_up_proj_scales"
QKVZ = "model.layers.0.linear_attn.in_proj_qkvz.weight"


def refusal(folder: Path, stored: Stored) -> str:
    stored.write(folder)
    vocabularies.save_sentencepiece(folder)
    with pytest.raises(ConvertError) as refused:
        convert(folder, folder / "out.gguf", mix_of("f32"))
    assert "\n" not in str(refused.value) and not (folder / "out.gguf").exists()
    return str(refused.value)


def without(name: str) -> Callable[[dict[str, list[int]]], Any]:
    return lambda shapes: shapes.pop(name)


def of_shape(name: str, *shape: int) -> Callable[[dict[str, list[int]]], Any]:
    return lambda shapes: shapes.update({name: list(shape)})


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("qwen3moe", without(EXPERT), f"hold no {EXPERT}: expected numbers 0 to 4"),
        ("qwen3moe", of_shape(EXPERT, 16, 64), f"{EXPERT} has shape (16, 64), number 0 has"),
        ("qwen3moe", of_shape(EXPERT.replace("3", "5"), 32, 64), "config.json has 5 experts"),
        ("mixtral", of_shape("model.layers.0.mlp.x.weight", 1, 1), "is unknown to"),
        ("gpt-oss-mxfp4", without(SCALES), f"_blocks and no {SCALES}"),
        ("gpt-oss-mxfp4", without(SCALES.replace("scales", "blocks")), "and no blocks of it"),
        ("gpt-oss-mxfp4", of_shape(SCALES, 5, 192, 3), "no blocks of 32 weights"),
        ("qwen35moe-fused", of_shape("model.layers.0.mlp.experts.gate_up_proj", 5, 65, 64), "two"),
        ("qwen3next", of_shape(QKVZ, 510, 64), f"{QKVZ} has shape (510, 64), expected 512 rows"),
        (
            "qwen35-text",
            of_shape("model.layers.0.linear_attn.A_log", 4),
            "model.layers.0.linear_attn.A_log has shape (4,), expected 6 by config.json",
        ),
        (
            "lfm2",
            of_shape("model.layers.0.conv.conv.weight", 64, 2, 3),
            "conv.conv.weight has shape (64, 2, 3), expected (channels, 1, width)",
        ),
        ("lfm2", of_shape("model.layers.0.conv.conv.bias", 64), "conv.bias is unknown to"),
        ("granitehybrid", of_shape("model.layers.0.mamba.D", 7), "D has shape (7,), expected (8,)"),
        (
            "granitehybrid-dense",
            of_shape("model.layers.0.mamba.norm.weight", 64),
            "norm.weight has shape (64,), expected (128,)",
        ),
        (
            "falcon-h1",
            of_shape("model.layers.0.mamba.in_proj.weight", 293, 64),
            "in_proj.weight has 293 rows, expected 294",
        ),
        (
            "nemotron_h_moe",
            without("backbone.layers.1.mixer.experts.3.up_proj.weight"),
            "hold no backbone.layers.1.mixer.experts.3.up_proj.weight",
        ),
    ],
)
def test_tensors_that_are_missing_or_of_other_shapes(
    name: str, change: Callable[[dict[str, list[int]]], Any], message: str, tmp_path: Path
) -> None:
    stored = Stored.read(name)
    change(stored.shapes)
    assert message in refusal(tmp_path, stored)


DEEPSEEK_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("glm4moe", {"scoring_func": "sqrtsoftplus"}, "'sqrtsoftplus', expected sigmoid for a glm"),
        ("qwen3moe", {"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid', expected softmax"),
        ("qwen3moe", {"norm_topk_prob": False}, "norm_topk_prob is false, expected true for a"),
        ("olmoe", {"norm_topk_prob": True}, "norm_topk_prob is true, expected false for a olmoe"),
        ("qwen3moe", {"mlp_only_layers": [0]}, "mlp_only_layers is [0], expected none"),
        ("qwen2moe", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2, expected 1"),
        ("qwen3moe", {"num_experts_per_tok": 6}, "num_experts_per_tok is 6, expected at most 5"),
        ("qwen3moe", {"num_local_experts": 1 << 20}, "1048576 experts, expected at most 1024"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv is 8.0, expected none"),
        ("ernie4_5-moe", {"moe_layer_end_index": 1}, "moe_layer_end_index is 1, expected the last"),
        ("ernie4_5-moe", {"moe_layer_interval": 2}, "moe_layer_interval is 2, expected 1"),
        ("lfm2moe", {"routed_scaling_factor": 2.0}, "routed_scaling_factor is 2.0, expected 1"),
        ("lfm2", {"conv_bias": True}, "conv_bias is true, expected false"),
        ("qwen3next", {"linear_value_head_dim": 64}, "linear_value_head_dim is 64, expected that"),
        ("qwen35-text", {"linear_num_key_heads": 4}, "linear_num_key_heads is 4, expected a div"),
        ("qwen35-text", {"linear_num_key_heads": 0}, "linear_num_key_heads is 0, expected a div"),
        ("qwen35-text", {"attn_output_gate": False}, "attn_output_gate is false, expected true"),
        ("qwen35-text", {"layer_types": ["mamba"] * 4}, "layer_types has 'mamba'"),
        ("gpt-oss", {"swiglu_limit": 5.0}, "swiglu_limit is 5.0, expected 7.0"),
        ("gpt-oss", {"layer_types": ["full_attention"] * 3}, "every other layer has a window"),
        ("gpt-oss", {"quantization_config": {"quant_method": "gptq"}}, "quantised ('gptq')"),
        ("qwen3moe", {"quantization_config": {"quant_method": "mxfp4"}}, "quantised ('mxfp4')"),
        (
            "laguna",
            {"attention_bias": True},
            "attention_bias is true, expected false for a laguna",
        ),
        ("laguna", {"moe_router_logit_softcapping": 3.0}, "softcapping is 3.0, expected 0"),
        ("laguna", {"num_attention_heads_per_layer": [4, 8]}, "expected a multiple of 2 for each"),
        ("laguna", {"num_attention_heads_per_layer": [4, 8, 7, 8, 4]}, "a multiple of 2 for each"),
        ("laguna", {"mlp_layer_types": ["sparse", "dense"]}, "expected dense layers, then sparse"),
        ("laguna", {"mlp_only_layers": [2]}, "mlp_only_layers is [2], expected the first 1"),
        ("laguna", {"scoring_func": "softmax"}, "scoring_func is 'softmax', expected sigmoid"),
        ("deepseek3", {"rope_interleave": False}, "rope_interleave is false, expected true for a"),
        ("deepseek3", {"attention_bias": True}, "attention_bias is true, expected false for a"),
        ("deepseek3", {"scoring_func": "softmax"}, "scoring_func is 'softmax', expected sigmoid"),
        ("deepseek3", {"topk_method": "group_limited_greedy"}, "expected noaux_tc: readers choose"),
        ("deepseek3", {"kv_lora_rank": 31}, "has shape (128, 32), expected (128, 31)"),
        (
            "deepseek2-lite",
            {"moe_layer_freq": 2},
            "moe_layer_freq is 2, expected 1 for a deepseek2",
        ),
        ("deepseek2-lite", {"rope_parameters": DEEPSEEK_YARN}, "mscale_all_dim is missing"),
        (
            "deepseek2-lite",
            {"rope_parameters": DEEPSEEK_YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}},
            "mscale and mscale_all_dim is '1.0 and 0.7', expected equal numbers",
        ),
        ("glm4-lite", {"mlp_layer_types": ["sparse"] * 3}, "expected 1 dense layers, then sparse"),
        ("granitehybrid", {"mamba_d_head": 17}, "mamba_expand is 2, which makes 128 numbers"),
        ("granitehybrid", {"mamba_n_groups": 0}, "0 groups of 128 numbers of a scan"),
        ("granitehybrid", {"mamba_proj_bias": True}, "mamba_proj_bias is true, expected false"),
        ("granitehybrid", {"layer_types": ["conv"] * 3}, "layer_types has 'conv'"),
        ("granitehybrid", {"position_embedding_type": "rope"}, "'rope', expected nope for a gran"),
        ("granite4", {"position_embedding_type": "nope"}, "'nope', expected rope for a granite"),
        ("granitehybrid", {"time_step_limit": [0.0, 0.1]}, "time_step_limit is [0.0, 0.1]"),
        ("bamba", {"attn_layer_indices": [1, 3]}, "is [1, 3], expected numbers below 3"),
        ("bamba", {"attn_rotary_emb": 16}, "attn_rotary_emb is 16, expected 8 for a granitehybrid"),
        (
            "nemotron_h",
            {"hybrid_override_pattern": "M-*"},
            "M * - E for each of 4 layers",
        ),
        ("nemotron_h", {"hybrid_override_pattern": "M-*X"}, "expected a letter of M * - E for"),
        ("nemotron_h", {"hybrid_override_pattern": "M-*E"}, "of the kinds mlp and moe"),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "the activation is 'silu', expected relu2"),
        ("nemotron_h", {"mamba_hidden_act": "gelu"}, "mamba_hidden_act is 'gelu', expected silu"),
        ("falcon-h1", {"mamba_rms_norm": True}, "mamba_norm_before_gate is true, expected false"),
        ("falcon-h1", {"mlp_multipliers": [1.0]}, "mlp_multipliers is [1.0], expected 2 numbers"),
        ("falcon-h1", {"ssm_multipliers": None}, "ssm_multipliers is null, expected 5 numbers"),
        ("falcon-h1", {"key_multiplier": "1"}, "key_multiplier is '1', expected a number"),
        ("gemma4", {"use_bidirectional_attention": "all"}, "expected a causal model"),
        ("gemma4", {"rope_parameters": {"full_attention": {}}}, "expected proportional"),
    ],
)
def test_settings_that_a_file_cannot_say(
    name: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    stored = Stored.read(name)
    stored.config.update(values)
    assert message in refusal(tmp_path, stored)


def test_a_shard_that_is_missing(tmp_path: Path) -> None:
    stored = Stored.read("qwen3moe")
    stored.write(tmp_path)
    vocabularies.save_sentencepiece(tmp_path)
    shards = {name: f"model-{1 + (name == EXPERT)}.safetensors" for name in stored.shapes}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    (tmp_path / "model.safetensors").unlink()
    stored.shapes.pop(EXPERT)
    write_safetensors(tmp_path / "model-1.safetensors", weights(stored.shapes))
    with pytest.raises(ConvertError, match=r"lacks 1 of 2 shards, as model-2\.safetensors"):
        convert(tmp_path, tmp_path / "out.gguf", mix_of("f32"))
    write_safetensors(tmp_path / "model-2.safetensors", {})
    with pytest.raises(ConvertError, match=r"lists model\.layers\.1\.mlp\.experts\.3\.up_proj"):
        convert(tmp_path, tmp_path / "out.gguf", mix_of("f32"))


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    stored, told = Stored.read("qwen35moe-fused"), list[str]()
    stored.write(tmp_path)
    vocabularies.save_sentencepiece(tmp_path)
    convert(tmp_path, tmp_path / "out.gguf", mix_of("f32"), notice=told.append)
    assert told == ["2 tensors are left out: they draft tokens, which kvarn does without them"]
    stored = Stored.read("gpt-oss")
    stored.config["rope_parameters"]["truncate"] = False
    stored.write(tmp_path)
    convert(tmp_path, tmp_path / "out.gguf", mix_of("q8_0"), notice=told.append)
    assert "truncate false" in told[1] and len(told) == 2


def test_chunks_of_a_few_rows_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than an expert, or than a head, at a time."""
    for name in (
        *("qwen35moe-fused", "gpt-oss", "gpt-oss-mxfp4", "qwen3next", "mixtral"),
        *("nemotron_h_moe", "falcon-h1-normed"),
    ):
        folder = tmp_path / name
        Stored.read(name).write(folder)
        vocabularies.save_sentencepiece(folder)
        whole, parts = folder / "whole.gguf", folder / "parts.gguf"
        convert(folder, whole, mix_of("f32"))
        with monkeypatch.context() as patch:
            patch.setattr(import_module("kvarn.convert.hf.convert"), "CHUNK_BYTES", 4 * 64 * 7)
            convert(folder, parts, mix_of("f32"))
        assert whole.read_bytes() == parts.read_bytes()


def test_a_shared_output_matrix_of_falcon_h1_has_a_factor_of_its_own(tmp_path: Path) -> None:
    """The file is that of a model whose output matrix has the weights of the embedding."""
    stored = Stored.read("falcon-h1")
    own = weights(stored.shapes)
    own["lm_head.weight"] = own["model.embed_tokens.weight"]
    files = []
    for shared in (False, True):
        folder = tmp_path / str(shared)
        stored.config["tie_word_embeddings"] = shared
        stored.write(folder)
        kept = {k: v for k, v in own.items() if not (shared and k == "lm_head.weight")}
        write_safetensors(folder / "model.safetensors", kept)
        vocabularies.save_sentencepiece(folder)
        convert(folder, folder / "m.gguf", mix_of("f32"))
        tensors = gguf.GGUFReader(folder / "m.gguf").tensors
        files.append({tensor.name: tensor.data.tobytes() for tensor in tensors})
    assert files[0] == files[1] and "output.weight" in files[0]


def test_packed_experts_stay_packed_in_every_mix(tmp_path: Path) -> None:
    stored = Stored.read("gpt-oss-mxfp4")
    stored.write(tmp_path)
    vocabularies.save_sentencepiece(tmp_path)
    convert(tmp_path, tmp_path / "out.gguf", mix_of("q4_k_m"))
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    down = tensors["blk.1.ffn_down_exps.weight"]
    assert down.tensor_type.name == "MXFP4"
    # Values by gguf-py's decoder against the definition of both formats.
    given = weights(stored.shapes)
    stem = "model.layers.1.mlp.experts.down_proj"
    codes, scales = given[f"{stem}_blocks"], given[f"{stem}_scales"]
    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    for expert, row, block, i in ((0, 0, 0, 0), (4, 63, 2, 31), (2, 5, 1, 16), (1, 9, 0, 15)):
        code = int(codes[expert, row, block, i // 2]) >> (4 * (i % 2)) & 15
        value = table[code] * 2.0 ** (int(scales[expert, row, block]) - 127)
        rows = gguf.quants.dequantize(down.data, down.tensor_type)
        assert rows[expert, row, 32 * block + i] == value
