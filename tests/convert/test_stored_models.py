"""Mixtures, hybrids and packed weights: what transformers and llama.cpp's converter make of them.

The golden files are made by `golden/make_models.py`.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest

from kvarn.convert.hf import convert
from kvarn.convert.quantize.mixes import mix_of
from kvarn.models import ModelConfig
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights
from kvarn.runtime.gguf import open_gguf

from . import vocabularies
from .stored_models import IDS, KEPT, NAMES, Stored, described


@pytest.fixture(scope="module", params=NAMES)
def converted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Stored, Path]:
    """A golden file, and the model converted to F32."""
    stored, folder = Stored.read(request.param), tmp_path_factory.mktemp("stored")
    stored.write(folder / "hf")
    vocabularies.save_sentencepiece(folder / "hf")
    convert(folder / "hf", folder / "m.gguf", mix_of("f32"))
    return stored, folder / "m.gguf"


def test_keys_are_those_of_llama_cpp(converted: tuple[Stored, Path]) -> None:
    stored, path = converted
    fields = gguf.GGUFReader(path).fields.items()
    others = ("general.", "tokenizer.", "GGUF.")
    written = {key: field.contents() for key, field in fields if not key.startswith(others)}
    assert written == stored.keys


def test_tensors_are_those_of_llama_cpp(converted: tuple[Stored, Path]) -> None:
    stored, path = converted
    written: dict[str, Any] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        shape = tensor.shape.tolist()[::-1]
        written[tensor.name] = described(tensor.name, tensor.tensor_type.name, tensor.data, shape)
    assert written == stored.tensors


def test_logits_are_those_of_transformers(
    converted: tuple[Stored, Path], plain_ops: ModuleType
) -> None:
    stored, path = converted
    with open_gguf(path) as file:
        config = ModelConfig.from_metadata(file.metadata)
        model = Transformer(config, Weights.load(file.tensors, config), 64)
        logits = plain_ops.read(model, plain_ops.PlainAttention(config), IDS, n_ctx=64)
    expected = np.array(stored.logits, np.float32)
    # ggml rounds gelu through float16, as the plain operations here do too; transformers does not.
    limit = 1e-2 if config.architecture.activation == "gelu" else 1e-4
    assert np.abs(logits[KEPT] - expected).max() < limit * expected.std()


def test_laguna_may_have_the_bias_of_a_choice_beside_its_experts(tmp_path: Path) -> None:
    stored = Stored.read("laguna")
    for name in [name for name in stored.shapes if ".gate.e_score" in name]:
        beside = name.replace(".gate.e_score", ".experts.e_score")
        stored.shapes[beside] = stored.shapes.pop(name)
    assert any(".experts.e_score_correction_bias" in name for name in stored.shapes)
    stored.write(tmp_path)
    vocabularies.save_sentencepiece(tmp_path)
    convert(tmp_path, tmp_path / "m.gguf", mix_of("f32"))
    assert {tensor.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors} == {
        *stored.tensors
    }
