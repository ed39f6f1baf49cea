"""Loading: what a user is told, and what is refused."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest

import kvarn
from kvarn.runtime.loading import load
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.model import Model
from lab.peers.model import Shape, write_model

from ..models.tiny_models import finish

SHAPE = Shape(n_layers=1, n_embd=256, n_heads=4, n_kv_heads=2, head_dim=64, n_ff=256, n_vocab=512)


def retyped(source: Path, target: Path, kind: gguf.GGMLQuantizationType) -> None:
    """A copy of a random model whose `ffn_up` is of another type, of random blocks."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            main, sub = field.types[0], field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), main, sub)
    for tensor in reader.tensors:
        if tensor.name.endswith("ffn_up.weight"):
            _, n_bytes = gguf.GGML_QUANT_SIZES[kind]
            blocks = np.random.default_rng(0).integers(0, 256, (256, n_bytes), dtype=np.uint8)
            blocks[:, :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
            writer.add_tensor(tensor.name, blocks, raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    finish(writer)


def test_re_encoded_tensors_are_said_and_compute(tmp_path: Path) -> None:
    write_model(tmp_path / "plain.gguf", "f16", SHAPE)
    retyped(tmp_path / "plain.gguf", tmp_path / "other.gguf", gguf.GGMLQuantizationType.IQ2_XS)
    said: list[str] = []
    model = kvarn.load(tmp_path / "other.gguf", notice=said.append)
    assert said == [
        "re-encoding tensors as Q8_0, as kvarn has no kernels for their types: 1 of type IQ2_XS"
    ]
    assert np.isfinite(model.context(8).prefill([1, 2, 3])).all()


def test_native_models_say_nothing(tiny_path: Path) -> None:
    said: list[str] = []
    kvarn.load(tiny_path, notice=said.append)
    assert said == []


def test_the_default_model_is_there_and_writes_words() -> None:
    model = kvarn.load()
    assert model.path == default_model_path()
    text = "".join(model.context(128).generate("The old man", 24, kvarn.Sampler(temp=0)))
    assert sum(character.isalpha() or character.isspace() for character in text) > len(text) / 2


def test_public_names_are_all_there() -> None:
    for name in kvarn.__all__:
        assert getattr(kvarn, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'TopKek'"):
        kvarn.TopKek  # noqa: B018


def test_the_path_of_a_model_names_it(tiny: Model, tiny_path: Path) -> None:
    assert tiny.path == tiny_path
    assert tiny.name == "random f16"


def test_matrices_that_do_not_fit_in_memory_are_not_laid_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "model.gguf", "q4_0", SHAPE)
    monkeypatch.setattr(load, "available_bytes", lambda: 100_000)
    with pytest.raises(kvarn.KvarnError, match=r"model\.gguf: .* and 97\.7 KiB is available"):
        kvarn.load(tmp_path / "model.gguf")
    monkeypatch.undo()
    model = kvarn.load(tmp_path / "model.gguf")
    assert np.isfinite(model.context(8).prefill([1, 2, 3])).all()


@pytest.mark.parametrize(
    ("metadata", "is_base"),
    [
        ({"name": "Qwen3 0.6B Base", "finetune": "Base"}, True),
        ({"name": "Mistral 7B v0.1", "tags": ["pretrained"]}, True),
        ({"name": "DeepSeek-V3-Base"}, True),
        ({}, False),
        ({"name": "Gemma 3 270m", "tags": ["gemma3", "text-generation"]}, False),
        ({"name": "Smollm2 135M 8k Lc100K Mix1 Ep2", "finetune": "8k-lc100k-mix1-ep2"}, False),
        ({"name": "Yi 6B Base Chat"}, False),
        ({"name": "Database Helper", "tags": ["base_model:adapter:x"]}, False),
        ({"name": 3, "finetune": b"\xff", "tags": 7}, False),
    ],
)
def test_what_says_that_a_model_is_a_base_model(
    tiny: Model, metadata: dict[str, object], is_base: bool
) -> None:
    # Two are of real files: of an instruct model, and of a base model that does not say it.
    named = {f"general.{key}": value for key, value in metadata.items()}
    assert replace(tiny.info, file=SimpleNamespace(metadata=named)).is_base == is_base


@pytest.mark.parametrize(
    ("name", "value"), [("store", "book/"), ("attend", "topk"), ("keep", 3), ("prefill", "exact")]
)
def test_an_argument_of_a_wrong_type_is_named(tiny: Model, name: str, value: object) -> None:
    words: dict[str, Any] = {name: value}
    with pytest.raises(kvarn.KvarnError, match=rf"^{name} is {value!r}, expected .* kvarn\."):
        tiny.context(64, **words)
