"""PEFT's adapters as GGUF files: what transformers and PEFT compute, or one line that says why not.

The golden files are made by `golden/make_adapters.py`.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest

from kvarn.cli import main
from kvarn.convert.hf import convert
from kvarn.convert.hf.peft import convert_adapter
from kvarn.convert.hf.peft.settings import AdapterSettings
from kvarn.convert.quantize.mixes import mix_of
from kvarn.models import ModelConfig
from kvarn.models.transformer import Transformer
from kvarn.models.weights import Weights
from kvarn.runtime.gguf import open_gguf
from kvarn.runtime.home import last_model
from kvarn.runtime.loading.adapter_files import AdapterFile
from kvarn.runtime.loading.adapters import load_adapters
from kvarn.system.errors import KvarnError

from . import hf_folders, vocabularies
from .hf_folders import write_safetensors
from .hub_server import Hub
from .stored_adapters import NAMES, StoredAdapter
from .stored_models import IDS, KEPT, described

F32 = mix_of("f32")
Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module", params=NAMES)
def converted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[StoredAdapter, Path]:
    """A golden file; a folder with its model in hf/ and m.gguf, its adapter in a/ and a.gguf."""
    stored, folder = StoredAdapter.read(request.param), tmp_path_factory.mktemp("adapters")
    stored.write_model(folder / "hf")
    vocabularies.save_sentencepiece(folder / "hf")
    convert(folder / "hf", folder / "m.gguf", F32)
    stored.write(folder / "a")
    convert_adapter(folder / "a", folder / "a.gguf", F32, folder / "hf")
    return stored, folder


def test_logits_are_those_of_peft(
    converted: tuple[StoredAdapter, Path], plain_ops: ModuleType
) -> None:
    stored, folder = converted
    logits = {}
    with open_gguf(folder / "m.gguf") as file:
        config = ModelConfig.from_metadata(file.metadata)
        for files in ([AdapterFile(folder / "a.gguf")], []):
            factors = load_adapters(file, files).factors
            weights = Weights.load(file.tensors, config, adapters=factors)
            attention = plain_ops.PlainAttention(config)
            model = Transformer(config, weights, 64)
            logits[len(files)] = plain_ops.read(model, attention, IDS, n_ctx=64)[KEPT]
    expected = np.array(stored.logits, np.float32)
    # ggml rounds gelu through float16, as the plain operations here do too; transformers does not.
    limit = 1e-2 if config.architecture.activation == "gelu" else 1e-4
    assert np.abs(logits[1] - expected).max() < limit * expected.std()
    assert np.abs(logits[0] - expected).max() > 0.1 * expected.std()


def test_tensors_are_those_of_llama_cpp(converted: tuple[StoredAdapter, Path]) -> None:
    stored, folder = converted
    written = {
        t.name: described(t.name, t.tensor_type.name, t.data, t.shape.tolist()[::-1])
        for t in gguf.GGUFReader(folder / "a.gguf").tensors
    }
    expected = stored.tensors
    if expected is None:
        pytest.skip("llama.cpp's converter fails for this model")
    assert written.keys() == expected.keys()
    # Where PEFT has other scales for some matrices, llama.cpp's file has them not.
    other = stored.settings["alpha_pattern"] or stored.settings["rank_pattern"]
    scaled = re.compile("down_proj|attn_(q|k).weight.lora_b|ffn_down.weight.lora_b")
    for name, value in written.items():
        if not (other and scaled.search(name)):
            assert value == expected[name]
        assert value.split()[:2] == expected[name].split()[:2]


def test_a_gguf_file_tells_of_the_model_what_its_folder_tells(
    converted: tuple[StoredAdapter, Path], tmp_path: Path
) -> None:
    _, folder = converted
    convert_adapter(folder / "a", tmp_path / "a.gguf", F32, folder / "m.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (folder / "a.gguf").read_bytes()


def test_keys_of_an_adapter(converted: tuple[StoredAdapter, Path]) -> None:
    stored, folder = converted
    fields = gguf.GGUFReader(folder / "a.gguf").fields
    keys = {key: field.contents() for key, field in fields.items()}
    settings = stored.settings
    alpha = settings["lora_alpha"] * (math.sqrt(settings["r"]) if settings["use_rslora"] else 1)
    assert keys["general.type"] == "adapter" and keys["adapter.type"] == "lora"
    assert keys["adapter.lora.alpha"] == np.float32(alpha)
    assert keys["general.architecture"] == open_gguf(folder / "m.gguf").architecture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a llama in hf/ and its adapter in a/."""
    stored = StoredAdapter.read("llama")
    stored.write_model(tmp_path / "hf")
    stored.write(tmp_path / "a")
    return tmp_path


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
        ({"use_dora": True}, "use_dora is True: DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']"),
        ({"bias": "lora_only"}, "bias is 'lora_only', expected none"),
        ({"lora_bias": True}, "lora_bias is True: B has a bias"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True: its matrices are transposed"),
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


def test_the_base_of_quantised_training_is_read(folder: Path) -> None:
    convert_adapter(folder / "a", folder / "plain.gguf", F32, folder / "hf")
    path = folder / "hf/config.json"
    quantised = {"quantization_config": {"quant_method": "bitsandbytes"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | quantised))
    convert_adapter(folder / "a", folder / "out.gguf", F32, folder / "hf")
    assert (folder / "out.gguf").read_bytes() == (folder / "plain.gguf").read_bytes()


def test_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVARN_HOME", str(folder / "home"))
    monkeypatch.chdir(folder)
    assert main(["convert", "a", "out.gguf"]) == 1
    assert "adapter_config.json names somebody/tiny, expected a folder" in capsys.readouterr().err
    assert main(["convert", "a", "out.gguf", "--base", "hf"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == "out.gguf"
    assert "1 tensors are left out" in captured.err
    path = folder / "a/adapter_config.json"
    named = json.loads(path.read_text()) | {"base_model_name_or_path": "hf"}
    path.write_text(json.dumps(named))
    assert main(["convert", "a", "named.gguf", "--type", "f16"]) == 0
    assert "the adapter's model is hf" in capsys.readouterr().err
    types = {t.tensor_type.name for t in gguf.GGUFReader("named.gguf").tensors}
    assert types == {"F16"}
    for options, message in (
        (["--type", "q8_0"], "expected f32, f16 or bf16"),
        (["--pre", "qwen2"], "--pre has no effect on a"),
        (["--embed-hash"], "--embed-hash takes a GGUF file"),
    ):
        assert main(["convert", "a", "no.gguf", *options]) == 1
        assert message in capsys.readouterr().err
    hf_folders.write_llama(folder / "model")
    assert main(["convert", "model", "no.gguf", "--base", "hf"]) == 1
    assert "--base has no effect on model" in capsys.readouterr().err
    assert not Path("no.gguf").exists()
    assert last_model() is None  # an adapter is no model to run


def test_an_adapter_of_the_hub(folder: Path, hub: Hub) -> None:
    hub.add_folder("org/drafting-lora", folder / "a")
    homes = {"KVARN_HOME": str(folder / "home"), "HF_HOME": str(folder / "hub")}
    for command in (
        ["hf-pull", "org/drafting-lora"],
        ["convert", "out.gguf", "--base", str(folder / "hf")],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "kvarn", *command],
            env=os.environ | homes | {"HF_ENDPOINT": hub.url},
            cwd=folder,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    fields = gguf.GGUFReader(folder / "out.gguf").fields
    assert fields["general.organization"].contents() == "Org"
    assert fields["general.type"].contents() == "adapter"


@pytest.mark.parametrize("pattern", [".*.*x", "(.*.*|x)x", "(a|.)(.|a).*.*x"])
def test_no_pattern_takes_for_ever(pattern: str, folder: Path) -> None:
    path = folder / "a/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"alpha_pattern": {pattern: 2}}))
    write_pair(folder, "a." * 74, 8, 8)
    assert "is unknown to architecture llama" in refused(folder)
    write_pair(folder, "a." * 80, 8, 8)
    assert "a name of 160 characters, expected at most 150" in refused(folder)


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("q_proj", True),
        ("self_attn.q_proj", True),
        ("proj", False),
        ("0.self_attn", False),
        (r"^model\.layers\.\d\.self_attn.*", True),
        (r".*layers\.[01]\.self_attn\.(q|k)_proj", True),
        ("layers.*.k_proj", False),
    ],
)
def test_patterns_mean_what_they_mean_to_peft(pattern: str, matches: bool, folder: Path) -> None:
    """matches: what PEFT's `get_pattern_key` says."""
    path = folder / "a/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"alpha_pattern": {pattern: 32}}))
    settings = AdapterSettings.read(folder / "a")
    assert settings.scale_of("model.layers.0.self_attn.q_proj") == (8.0 if matches else 0.5)
