"""BERT models from transformers' folders: keys and tensors as llama.cpp's converter writes them,
ids as the library tokenizers makes them, vectors as plain NumPy computes of the stored weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

import kvarn
from kvarn.convert.errors import ConvertError
from kvarn.convert.hf.convert import convert
from kvarn.convert.quantize.mixes import mix_of
from kvarn.runtime.gguf import open_gguf

from ..models.tiny_text_encoders import SPECIAL, WORDS, TinyEncoder, tensors
from .hf_folders import write_safetensors

NAMES = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
    "cls": "pooler.dense",
    "cls.output": "classifier",
}
TEXTS = [
    "The man EATS bread.",
    "skys, stood! a-b 'the river'",
    "é É e\u0301 ẽ",
    "millsing mills xyz",
    "的 the的sky",
    "  a\t\nb  ",
    "[CLS] the [SEP]",
    "the\u0000sky\ufffd is\u00a0blue",
]


def stored_name(name: str) -> str:
    """transformers' name of a tensor of a GGUF file."""
    stem, _, end = name.rpartition(".")
    if not stem.startswith("blk."):
        return f"{NAMES[stem]}.{end}"
    _, layer, part = stem.split(".")
    return f"encoder.layer.{layer}.{NAMES[part]}.{end}"


def write_folder(folder: Path, case: TinyEncoder, **changes: Any) -> Path:
    """What transformers and sentence-transformers save. changes: of config.json."""
    kind = "BertForSequenceClassification" if case.labels else "BertModel"
    config = {
        "architectures": [kind],
        "model_type": "bert",
        "vocab_size": case.n_vocab,
        "hidden_size": case.n_embd,
        "intermediate_size": case.n_ff,
        "num_hidden_layers": case.n_layers,
        "num_attention_heads": case.n_heads,
        "max_position_embeddings": case.n_ctx,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-6,
        "hidden_act": "gelu",
        "id2label": {"0": "LABEL_0"},
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    prefix = "bert." if case.labels else ""
    stored = {}
    for name, values in tensors(case).items():
        plain = stored_name(name)
        stored[plain if plain.startswith("classifier") else prefix + plain] = values
    stored[f"{prefix}embeddings.position_ids"] = np.zeros((1, case.n_ctx), np.int32)
    if not case.labels:
        stored["pooler.dense.weight"] = np.zeros((case.n_embd, case.n_embd), np.float32)
        stored["cls.predictions.bias"] = np.zeros(case.n_vocab, np.float32)
    write_safetensors(folder / "model.safetensors", stored)
    save_vocabulary(folder)
    return folder


def save_vocabulary(folder: Path) -> None:
    vocab = {text: i for i, text in enumerate([*SPECIAL, *WORDS])}
    library = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"))
    library.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    library.add_special_tokens(list(SPECIAL))
    library.save(str(folder / "tokenizer.json"))
    roles = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL))
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))


def write_pooling(folder: Path, kind: str, mode: dict[str, Any]) -> None:
    modules = [
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": f"sentence_transformers.models.{kind}"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(mode))


def test_the_file_has_the_keys_and_tensors_of_llama_cpps_converter(tmp_path: Path) -> None:
    case = TinyEncoder()
    write_folder(tmp_path, case)
    write_pooling(
        tmp_path, "Pooling", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    )
    convert(tmp_path, tmp_path / "out.gguf", mix_of("f32"))
    file = open_gguf(tmp_path / "out.gguf")
    keys = {key: file.metadata[key] for key in file.metadata}
    expected = {
        "general.architecture": "bert",
        "bert.block_count": 3,
        "bert.context_length": 48,
        "bert.embedding_length": 64,
        "bert.feed_forward_length": 96,
        "bert.attention.head_count": 4,
        "bert.attention.causal": False,
        "bert.pooling_type": 2,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.mask_token_id": 4,
    }
    assert expected.items() <= keys.items()
    assert keys["bert.attention.layer_norm_epsilon"] == pytest.approx(1e-6)
    spelt = [word.removeprefix("##") if "##" in word else f"▁{word}" for word in WORDS]
    assert keys["tokenizer.ggml.tokens"] == [*SPECIAL, *spelt]
    assert list(keys["tokenizer.ggml.token_type"]) == [3] * 5 + [1] * len(WORDS)
    stored = tensors(case)
    assert file.tensors.keys() == stored.keys()
    for name, values in stored.items():
        raw = file.tensors[name].data
        np.testing.assert_array_equal(np.frombuffer(raw, np.float32), values.ravel())


@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_are_those_of_the_library(lowercase: bool, tmp_path: Path) -> None:
    write_folder(tmp_path, TinyEncoder())
    saved = json.loads((tmp_path / "tokenizer.json").read_text())
    saved["normalizer"]["lowercase"] = lowercase
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    convert(tmp_path, tmp_path / "out.gguf", mix_of("f32"))
    mine = kvarn.load_tokenizer(tmp_path / "out.gguf")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        assert mine.encode(text, bos=True, special=True) == library.encode(text).ids, text


def test_rerankers_keep_the_pooler_that_their_classifier_reads(tmp_path: Path) -> None:
    case = TinyEncoder(labels=1)
    write_folder(tmp_path, case)
    convert(tmp_path, tmp_path / "out.gguf", mix_of("f32"))
    file = open_gguf(tmp_path / "out.gguf")
    assert file.tensors.keys() == tensors(case).keys()
    assert file.metadata["bert.pooling_type"] == 4
    scores = kvarn.load_embedder(tmp_path / "out.gguf").rank("sky", ["the mill", "river"])
    assert scores.shape == (2,) and scores[0] != scores[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "relu"}, "the activation is 'relu', expected gelu"),
        ({"position_embedding_type": "relative_key"}, "expected absolute"),
        ({"num_hidden_layers": 2}, "layer.2"),
    ],
)
def test_what_a_file_cannot_have_is_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_folder(tmp_path, TinyEncoder(), **changes)
    with pytest.raises(ConvertError, match=words):
        convert(tmp_path, tmp_path / "out.gguf", mix_of("f32"))


@pytest.mark.parametrize(
    ("kind", "mode", "words"),
    [
        ("Pooling", {"pooling_mode_max_tokens": True}, "the pooling is 'pooling_mode_max_tokens'"),
        ("Dense", {}, "follows the encoder"),
    ],
)
def test_other_ways_to_pool_are_refused(
    kind: str, mode: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_pooling(write_folder(tmp_path, TinyEncoder()), kind, mode)
    with pytest.raises(ConvertError, match=words):
        convert(tmp_path, tmp_path / "out.gguf", mix_of("f32"))
