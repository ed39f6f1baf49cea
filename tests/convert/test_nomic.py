"""NomicBERT from its makers' folders: keys and tensors as llama.cpp's converter writes them
(golden/make_nomic.py), vectors as plain NumPy computes of the stored weights."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import kvarn
from kvarn.convert.errors import ConvertError
from kvarn.convert.hf.convert import convert
from kvarn.convert.quantize.mixes import mix_of

from ..models.plain_text_encoders import hidden_states
from ..models.tiny_text_encoders import TinyEncoder
from . import nomic_folders, test_text_encoders, test_unigram
from .hf_folders import write_safetensors
from .nomic_folders import CASE, DENSE
from .stored_models import described
from .test_text_encoders import write_pooling

GOLDEN = Path(__file__).with_name("golden") / "nomic.json"
BIASED = replace(CASE, experts_bias=True)
CASES = pytest.mark.parametrize("case", [CASE, DENSE, BIASED], ids=["moe", "dense", "moe, bias"])


def write_folder(folder: Path, case: TinyEncoder, **changes: Any) -> Path:
    nomic_folders.write(folder, case, **changes)
    (test_unigram if case.n_experts else test_text_encoders).save_vocabulary(folder)
    return folder


def converted(folder: Path, said: list[str] | None = None) -> Path:
    notice = (lambda line: None) if said is None else said.append
    convert(folder, folder / "out.gguf", mix_of("f32"), notice=notice)
    return folder / "out.gguf"


@CASES
def test_keys_and_tensors_are_those_of_llama_cpp(case: TinyEncoder, tmp_path: Path) -> None:
    said: list[str] = []
    reader = gguf.GGUFReader(converted(write_folder(tmp_path, case), said))
    golden = json.loads(GOLDEN.read_text())[case.architecture]
    others = ("general.", "tokenizer.", "GGUF.")
    keys = {k: f.contents() for k, f in reader.fields.items() if not k.startswith(others)}
    assert keys == golden["keys"]
    written = {
        t.name: described(t.name, t.tensor_type.name, t.data, t.shape.tolist()[::-1])
        for t in reader.tensors
    }
    kept = {name for name in written if name.endswith("ffn_exps.bias")}
    assert kept == ({"blk.1.ffn_exps.bias", "blk.3.ffn_exps.bias"} if case is BIASED else set())
    assert len(said) == bool(kept)
    if case is not BIASED:  # the random numbers after a bias are others
        assert written == golden["tensors"]


@CASES
def test_vectors_are_those_of_the_stored_weights(case: TinyEncoder, tmp_path: Path) -> None:
    write_pooling(write_folder(tmp_path, case), "Pooling", {"pooling_mode_mean_tokens": True})
    model = kvarn.load_embedder(converted(tmp_path))
    assert (model.pooling, model.n_ctx) == ("mean", case.n_ctx)
    for text in ("the mill", "the river the mill"):
        ids = model.tokenizer.encode(text, bos=True)
        expected = hidden_states(case, ids, [0] * len(ids)).mean(0)
        np.testing.assert_allclose(
            model.embed(text)[0], expected / np.linalg.norm(expected), atol=2e-5
        )


def test_experts_are_the_same_a_few_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = converted(write_folder(tmp_path, CASE)).read_bytes()
    monkeypatch.setattr(import_module("kvarn.convert.hf.convert"), "CHUNK_BYTES", 4 * 64 * 7)
    assert converted(tmp_path).read_bytes() == whole


@pytest.mark.parametrize(
    ("case", "changes", "words"),
    [
        (CASE, {"activation_function": "relu"}, "activation_function is 'relu', expected gelu"),
        (CASE, {"prenorm": True}, "prenorm is true, expected false for a nomic-bert-moe file"),
        (CASE, {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction is 0.5, expected 1.0"),
        (CASE, {"moe_normalize_expert_weights": True}, "moe_normalize_expert_weights is true"),
        (CASE, {"num_experts": 4}, r"w1 has shape \(480, 64\), expected \(384, 64\)"),
        (CASE, {"num_experts": 0}, r"w1 has shape \(480, 64\), expected \(0, 64\)"),
        (DENSE, {"activation_function": "gelu"}, "expected swiglu for a nomic-bert file"),
        (DENSE, {"causal": True}, "causal is true, expected false"),
        (DENSE, {"n_layer": "3"}, "num_hidden_layers is '3', expected a whole number"),
    ],
)
def test_what_a_file_cannot_have_is_refused(
    case: TinyEncoder, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_folder(tmp_path, case, **changes)
    with pytest.raises(ConvertError, match=words):
        converted(tmp_path)


def test_an_expert_matrix_that_is_missing_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, CASE)
    stored = nomic_folders.stored(CASE)
    del stored["encoder.layers.1.mlp.experts.mlp.w2"]
    write_safetensors(tmp_path / "model.safetensors", stored)
    with pytest.raises(kvarn.KvarnError, match=r"blk\.1\.ffn_down_exps\.weight is missing"):
        kvarn.load_embedder(converted(tmp_path), pooling="mean")
