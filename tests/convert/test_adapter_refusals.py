"""PEFT's adapters that no GGUF file can have, or no such model: one line that says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvarn.convert.hf import convert
from kvarn.convert.hf.peft import convert_adapter
from kvarn.convert.quantize.mixes import mix_of
from kvarn.system.errors import KvarnError

from . import vocabularies
from .hf_folders import write_safetensors
from .stored_adapters import StoredAdapter

F32 = mix_of("f32")
Q = "base_model.model.model.layers.0.self_attn.q_proj"


def refused(folder: Path, base: Path | None = None) -> str:
    with pytest.raises(KvarnError) as error:
        convert_adapter(folder / "a", folder / "out.gguf", F32, base or folder / "hf")
    assert "\n" not in str(error.value) and not (folder / "out.gguf").exists()
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', expected LORA"),
        ({"peft_type": None}, "peft_type is missing"),
        ({"use_dora": True}, "use_dora is true: DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']"),
        ({"bias": "lora_only"}, "bias is 'lora_only', expected none"),
        ({"lora_bias": True}, "lora_bias is true: B has a bias"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is true: its matrices are transposed"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "it changes stacked experts"),
        ({"trainable_token_indices": [3]}, "it changes rows of the embedding"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "its layers are copies"),
        ({"alora_invocation_tokens": [5]}, "begins at a token of its own"),
        ({"kasa_config": {}, "use_qalora": True}, "something else than B A"),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4', which changes the model itself"),
        ({"init_lora_weights": ["x"]}, "init_lora_weights is ['x']"),
        ({"r": 0}, "r is 0, expected a whole number from 1"),
        ({"r": None}, "r is missing"),
        ({"r": 8}, "has rank 4, expected 8 by adapter_config.json"),
        ({"rank_pattern": {"q_proj": 2}}, "q_proj has rank 4, expected 2"),
        ({"rank_pattern": {"q_proj": "2"}}, "rank_pattern 'q_proj' is '2', expected a whole"),
        ({"rank_pattern": ["q_proj"]}, "rank_pattern is ['q_proj'], expected an object of"),
        ({"rank_pattern": {"(a+)+": 2}}, "rank_pattern is '(a+)+', expected patterns of at most 2"),
        ({"rank_pattern": {"(a|a)(a|a)(a|a)": 2}}, "expected patterns of at most 2 repetitions"),
        ({"rank_pattern": {str(i): 4 for i in range(4097)}}, "an object of at most 4096 patterns"),
        ({"alpha_pattern": {".*.*.*x": 2}}, "alpha_pattern is '.*.*.*x', expected patterns"),
        ({"alpha_pattern": {"(q": 2}}, "alpha_pattern is '(q', expected a regular expression"),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern 'q_proj' is 'x', expected a number"),
        ({"lora_alpha": "x"}, "lora_alpha is 'x', expected a number"),
        ({"lora_alpha": 0}, "lora_alpha is 0.0, expected a number other than 0"),
        ({"use_rslora": 1}, "use_rslora is 1, expected true or false"),
    ],
)
def test_settings_that_a_file_cannot_have_are_refused(
    change: dict[str, Any], message: str, folder: Path
) -> None:
    path = folder / "a/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert message in refused(folder)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (f"{Q}.lora_magnitude_vector", (64,), "DoRA's magnitudes: expected"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", (4, 300), "of the embedding"),
        ("base_model.model.model.embed_tokens.weight", (300, 64), "has tensor base_model.model."),
        (f"{Q}.bias", (64,), "q_proj.bias, a bias: expected"),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", (4, 64), "expected base_model.model."),
        (f"{Q}.lora_A.weight", (4, 63), "blk.0.attn_q.weight, of shape (64, 63), which"),
        (f"{Q}.lora_B.weight", (64, 5), "has lora_A (4, 64) and lora_B (64, 5), expected (r, col"),
        (f"{Q}.lora_B.weight", (64, 4, 1), "lora_B (64, 4, 1)"),
        (f"{Q}.lora_B.weight", (65, 4), "has 65 rows, which heads of 16 do not divide"),
        (f"{Q}.lora_B.weight", (0, 4), "lora_B (0, 4)"),
        ("base_model.model.model.layers.0.mlp.experts.1.up_proj.lora_A.weight", (4, 64), "routed"),
    ],
)
def test_tensors_that_a_file_cannot_have_are_refused(
    name: str, shape: tuple[int, ...], message: str, folder: Path
) -> None:
    stored = StoredAdapter.read("llama")
    tensors = {n: np.ones(s, np.float32) for n, s in stored.shapes.items()}
    tensors[name] = np.ones(shape, np.float32)
    write_safetensors(folder / "a/adapter_model.safetensors", tensors)
    convert_model(folder)
    assert message in refused(folder, folder / "m.gguf")


def convert_model(folder: Path) -> None:
    vocabularies.save_sentencepiece(folder / "hf")
    convert(folder / "hf", folder / "m.gguf", F32)


def write_pair(folder: Path, module: str, n_rows: int, n_columns: int, value: float = 1.0) -> None:
    name = f"base_model.model.{module}"
    tensors = {
        f"{name}.lora_A.weight": np.full((4, n_columns), value, np.float32),
        f"{name}.lora_B.weight": np.full((n_rows, 4), value, np.float32),
    }
    write_safetensors(folder / "a/adapter_model.safetensors", tensors)


def test_adapters_of_another_model_are_refused(folder: Path) -> None:
    convert_model(folder)
    base = folder / "m.gguf"
    write_pair(folder, "model.layers.2.self_attn.q_proj", 64, 64)
    assert "model.layers.2.self_attn.q_proj.weight is unknown to architecture llama" in refused(
        folder
    )
    write_pair(folder, "model.layers.1.self_attn.q_proj", 80, 64)
    assert "blk.1.attn_q.weight, of shape (80, 64), which has shape (64, 64) in m.gguf" in refused(
        folder, base
    )
    config = json.loads((folder / "hf/config.json").read_text())
    (folder / "hf/config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    write_pair(folder, "lm_head", 300, 64)
    assert "shares its matrix with the embedding" in refused(folder)
    (folder / "hf/config.json").write_text(json.dumps(config | {"architectures": ["X"]}))
    assert "the architecture 'X' is unknown to kvarn" in refused(folder)
    assert "no such" in refused(folder, folder / "none.gguf")
    write_pair(folder, "model.vision_tower.layers.0.q_proj", 64, 64)
    assert "has no tensors base_model.model.NAME.lora_A.weight of a text model" in refused(
        folder, base
    )


def test_weights_that_no_file_can_have_are_refused(folder: Path) -> None:
    write_pair(folder, "model.layers.1.self_attn.q_proj", 64, 64, np.inf)
    assert "blk.1.attn_q.weight.lora_a, rows from 0" in refused(folder)
    name = "base_model.model.model.layers.1.self_attn.q_proj"
    write_safetensors(
        folder / "a/adapter_model.safetensors",
        {f"{name}.lora_A.weight": np.ones((4, 64), np.float32)},
    )
    assert f"the adapter lacks tensor {name}.lora_B.weight" in refused(folder)
    write_safetensors(
        folder / "a/adapter_model.safetensors",
        {
            f"{name}.lora_A.weight": np.ones((4, 64), np.int32),
            f"{name}.lora_B.weight": np.ones((64, 4), np.float32),
        },
    )
    assert "lora_A.weight is stored as I32, expected one of F64" in refused(folder)
    (folder / "a/adapter_model.safetensors").rename(folder / "a/adapter_model.bin")
    assert "as a pickle (adapter_model.bin)" in refused(folder)
    (folder / "a/adapter_model.bin").unlink()
    assert "has no adapter_model.safetensors" in refused(folder)


def test_text_encoders_have_no_adapters(folder: Path) -> None:
    config = {"architectures": ["BertModel"], "num_hidden_layers": 1, "num_attention_heads": 2}
    (folder / "hf/config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    assert "hf is a text encoder (bert)" in refused(folder)


@pytest.mark.parametrize("pattern", [".*.*x", "(.*.*|x)x", "(a|.)(.|a).*.*x"])
def test_no_pattern_takes_for_ever(pattern: str, folder: Path) -> None:
    path = folder / "a/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"alpha_pattern": {pattern: 2}}))
    write_pair(folder, "a." * 74, 8, 8)
    assert "is unknown to architecture llama" in refused(folder)
    write_pair(folder, "a." * 80, 8, 8)
    assert "a name of 160 characters, expected at most 150" in refused(folder)
