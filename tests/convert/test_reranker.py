"""Qwen3-Reranker from transformers' folder: a file that scores pairs by "yes" and "no"."""

from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.convert.errors import ConvertError
from kvarn.convert.hf.convert import convert
from kvarn.convert.quantize.mixes import mix_of
from kvarn.runtime.engine import on_engine
from kvarn.runtime.gguf import open_gguf

from . import vocabularies
from .hf_folders import LLAMA, llama_tensors, write_llama

CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16}
CONFIG |= {"max_position_embeddings": 512}


def write_folder(folder: Path, words: tuple[str, str] = ("yes", "no")) -> Path:
    tensors = llama_tensors()
    for i in range(LLAMA["num_hidden_layers"]):
        for part in ("q_norm", "k_norm"):
            tensors[f"model.layers.{i}.self_attn.{part}.weight"] = np.ones(16, np.float32)
    write_llama(folder, CONFIG, tensors)
    pieces = vocabularies.small_pieces(LLAMA["vocab_size"])
    pieces[-2:] = [(word, -1.0, 1) for word in words]
    vocabularies.save_sentencepiece(folder, pieces)
    return folder


def test_the_file_has_rows_labels_and_template(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "Qwen3-Reranker-tiny")
    convert(folder, tmp_path / "out.gguf", mix_of("f32"))
    file = open_gguf(tmp_path / "out.gguf")
    head = np.frombuffer(file.tensors["cls.output.weight"].data, np.float32).reshape(2, -1)
    np.testing.assert_array_equal(head, llama_tensors()["lm_head.weight"][-2:])
    assert file.metadata["qwen3.pooling_type"] == 4
    assert file.metadata["qwen3.classifier.output_labels"] == ["yes", "no"]
    model = kvarn.load_embedder(tmp_path / "out.gguf")
    score = model.rank("mill", ["the mill"])[0]
    pair = file.metadata["tokenizer.chat_template.rerank"]
    pair = pair.replace("{query}", "mill").replace("{document}", "the mill")
    generates = kvarn.load(tmp_path / "out.gguf")
    ids = generates.tokenizer.encode(pair)
    with generates.context(len(ids)) as context:
        last = np.array(on_engine(context.reader.forward, ids, None)[-1], np.float64)
    weights = np.exp(head @ last)
    assert score == pytest.approx(weights[0] / weights.sum(), abs=1e-3)


def test_a_card_names_it_too(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "plain")
    convert(folder, tmp_path / "plain.gguf", mix_of("f32"))
    assert "cls.output.weight" not in open_gguf(tmp_path / "plain.gguf").tensors
    (folder / "README.md").write_text("# Qwen3-Reranker-0.6B\n")
    convert(folder, tmp_path / "named.gguf", mix_of("f32"))
    assert "cls.output.weight" in open_gguf(tmp_path / "named.gguf").tensors


def test_a_vocabulary_without_yes_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "qwen3-reranker", ("ja", "no"))
    with pytest.raises(ConvertError, match="no token 'yes'"):
        convert(folder, tmp_path / "out.gguf", mix_of("f32"))
