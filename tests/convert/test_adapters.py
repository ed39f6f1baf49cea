"""PEFT's adapters as GGUF files: what transformers and PEFT compute.

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

import gguf
import numpy as np
import pytest

from kvarn.cli import main
from kvarn.convert.hf import convert
from kvarn.convert.hf.peft import convert_adapter
from kvarn.convert.hf.peft.settings import AdapterSettings
from kvarn.convert.quantize.mixes import mix_of
from kvarn.models import ModelConfig
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights
from kvarn.runtime.gguf import open_gguf
from kvarn.runtime.home import last_model
from kvarn.runtime.loading.adapter_files import AdapterFile
from kvarn.runtime.loading.adapters import load_adapters

from . import hf_folders, vocabularies
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
