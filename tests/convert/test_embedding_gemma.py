"""embeddinggemma from a folder of sentence-transformers: keys and tensors as llama.cpp's converter
writes them, vectors as transformers computes them (golden/make_embedding_gemma.py)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.convert.errors import ConvertError
from kvarn.convert.hf.convert import convert
from kvarn.convert.quantize.mixes import mix_of
from kvarn.runtime.embedding.texts import Ids
from kvarn.runtime.gguf import open_gguf

from ..models.tiny_text_encoders import tensors
from . import gemma_folders
from .gemma_folders import CASE, IDS

VECTORS = Path(__file__).with_name("golden") / "embedding_gemma.json"


def test_the_file_has_the_keys_and_tensors_of_llama_cpps_converter(tmp_path: Path) -> None:
    convert(gemma_folders.write(tmp_path), tmp_path / "out.gguf", mix_of("f32"))
    file = open_gguf(tmp_path / "out.gguf")
    expected = {
        "block_count": 7,
        "context_length": 48,
        "embedding_length": 64,
        "feed_forward_length": 80,
        "attention.head_count": 4,
        "attention.head_count_kv": 1,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.sliding_window": 8,
        "rope.freq_base": 1000.0,
        "rope.freq_base_swa": 10000.0,
        "pooling_type": 1,
        "dense_2_feat_in": 64,
        "dense_2_feat_out": 160,
        "dense_3_feat_in": 160,
        "dense_3_feat_out": 64,
    }
    for key, value in expected.items():
        assert file.metadata[f"gemma-embedding.{key}"] == value, key
    assert file.metadata["tokenizer.ggml.model"] == "llama"
    assert file.metadata["tokenizer.ggml.add_space_prefix"] is False
    stored = tensors(CASE)
    assert file.tensors.keys() == stored.keys()
    for name, values in stored.items():
        raw = np.frombuffer(file.tensors[name].data, np.float32)
        np.testing.assert_allclose(raw, values.ravel(), atol=2e-7)


def test_vectors_are_those_of_transformers(tmp_path: Path) -> None:
    convert(gemma_folders.write(tmp_path), tmp_path / "out.gguf", mix_of("f32"))
    model = kvarn.load_embedder(tmp_path / "out.gguf")
    assert (model.pooling, model.n_ctx, model.n_embd) == ("mean", 48, 64)
    vectors = model.embed_ids([Ids(ids, len(ids)) for ids in IDS])
    np.testing.assert_allclose(vectors, json.loads(VECTORS.read_text()), atol=2e-5)


def test_texts_begin_and_end_with_the_tokens_that_the_model_asks_for(tmp_path: Path) -> None:
    convert(gemma_folders.write(tmp_path), tmp_path / "out.gguf", mix_of("f32"))
    model = kvarn.load_embedder(tmp_path / "out.gguf")
    ids = model.tokenizer.encode("the mill", bos=True)
    assert (ids[0], ids[-1]) == (1, 2) and len(ids) > 2
    np.testing.assert_array_equal(model.embed("the mill"), model.embed_ids([Ids(ids, len(ids))]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_bidirectional_attention": False}, "use_bidirectional_attention is not true"),
        ({"hidden_activation": "silu"}, "the activation is 'silu', expected gelu"),
        ({"query_pre_attn_scalar": 5}, "query_pre_attn_scalar is 5, expected 32"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2}}, "rope_type is 'linear'"),
    ],
)
def test_what_a_file_cannot_have_is_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConvertError, match=words):
        convert(gemma_folders.write(tmp_path, **changes), tmp_path / "out.gguf", mix_of("f32"))


def test_dense_layers_that_a_file_cannot_have_are_refused(tmp_path: Path) -> None:
    folder, out = gemma_folders.write(tmp_path), tmp_path / "out.gguf"
    second = folder / "3_Dense"
    matrix = np.zeros((64, 160), np.float32)
    gemma_folders.save_dense(second, matrix, "torch.nn.modules.activation.Tanh")
    with pytest.raises(ConvertError, match=r"3_Dense/config.json: the activation is .*Tanh"):
        convert(folder, out, mix_of("f32"))
    gemma_folders.save_dense(second, matrix.T)
    with pytest.raises(ConvertError, match=r"shapes \(160, 64\), \(160, 64\), expected two"):
        convert(folder, out, mix_of("f32"))
    bias = {"linear.weight": matrix, "linear.bias": matrix[:, 0]}
    identity = {"activation_function": "torch.nn.modules.linear.Identity"}
    gemma_folders.save(second, identity, bias)
    with pytest.raises(ConvertError, match=r"have no bias"):
        convert(folder, out, mix_of("f32"))
    (second / "model.safetensors").unlink()
    with pytest.raises(ConvertError, match=r"3_Dense has no model.safetensors"):
        convert(folder, out, mix_of("f32"))


@pytest.mark.parametrize(("mode", "number"), [("mean", 1), ("cls", 2), ("lasttoken", 3)])
def test_pooling_as_newer_versions_name_it(mode: str, number: int, tmp_path: Path) -> None:
    folder = gemma_folders.write(tmp_path)
    gemma_folders.save(folder / "1_Pooling", {"pooling_mode": mode}, None)
    convert(folder, tmp_path / "out.gguf", mix_of("f32"))
    assert open_gguf(tmp_path / "out.gguf").metadata["gemma-embedding.pooling_type"] == number


@pytest.mark.parametrize("path", ["..", "../1_Pooling", "/1_Pooling", "a/b"])
def test_modules_in_other_places_are_refused(path: str, tmp_path: Path) -> None:
    folder = gemma_folders.write(tmp_path / "model")
    gemma_folders.save(tmp_path / "1_Pooling", {"pooling_mode_cls_token": True}, None)
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConvertError, match=f"a module is in '{path}', expected a folder"):
        convert(folder, tmp_path / "out.gguf", mix_of("f32"))
