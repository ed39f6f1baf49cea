"""XLM-RoBERTa from transformers' folders: ids as the library tokenizers makes them, the same
vocabulary from SentencePiece's file, vectors and scores as plain NumPy computes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

import kvarn
from kvarn.convert.errors import ConvertError
from kvarn.convert.hf.convert import convert
from kvarn.convert.quantize.mixes import mix_of
from kvarn.runtime.gguf import open_gguf

from ..models.plain_text_encoders import hidden_states, scores
from ..models.tiny_text_encoders import TinyEncoder, tensors
from ..runtime.tokenizer import charsmaps
from . import vocabularies
from .hf_folders import write_safetensors
from .test_text_encoders import stored_name

WORDS = "▁the ▁mill ▁m ill ▁ the river er ▁r iv a b e f i é fi 1 2 12 . ! 的 ア ( ) 一 ⁄".split()
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
PIECES = [*SPECIAL, *WORDS, "<mask>"]
SCORES = [0.0] * 4 + [-2.0 - (i * 7919 % 512) / 64 for i in range(len(WORDS))] + [0.0]
CASE = TinyEncoder(n_tokens=len(PIECES))
# The library looks at one grapheme at a time, and at shorter texts first. SentencePiece and
# llama.cpp take the longest text that is replaced.
OTHERWISE = ("e", "１２", "٣٤", "ffi")
CHARSMAP = charsmaps.compiled(
    {text: new for text, new in charsmaps.RULES.items() if text not in OTHERWISE}
)
TEXTS = [
    "the mill",
    "  the   mill by  the river ",
    "theriver millill\tmill\nthe",
    "e\u0301 é ﬁ ﬃ ½ ① １２ ㈠",
    "的的 xyz ア ｱ\u200bthe",
    "the</s> <mask> mill",
    "\u3000",
    "The MILL!.",
]


def library(**normal: Any) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram(list(zip(PIECES, SCORES)), 3, False))
    made.normalizer = normalizers.Precompiled(CHARSMAP)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    made.add_special_tokens([*SPECIAL, "<mask>"])
    return made


def write_folder(folder: Path, labels: int = 0, **changes: Any) -> Path:
    """What transformers saves. changes: of config.json."""
    case = TinyEncoder(n_tokens=len(PIECES), labels=labels)
    config = {
        "architectures": [f"XLMRoberta{'ForSequenceClassification' if labels else 'Model'}"],
        "model_type": "xlm-roberta",
        "vocab_size": case.n_vocab,
        "hidden_size": case.n_embd,
        "intermediate_size": case.n_ff,
        "num_hidden_layers": case.n_layers,
        "num_attention_heads": case.n_heads,
        "max_position_embeddings": case.n_ctx + 2,
        "pad_token_id": 1,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-6,
        "id2label": {"0": "LABEL_0"},
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    renamed = {"cls": "classifier.dense", "cls.output": "classifier.out_proj"}
    stored = {}
    values = tensors(case)
    values["token_types.weight"] = values["token_types.weight"][:1]
    padding = np.full((2, case.n_embd), 9, np.float32)
    table = values["position_embd.weight"]
    values["position_embd.weight"] = np.concatenate([padding, table])
    for name, value in values.items():
        stem, _, end = name.rpartition(".")
        plain = ("roberta." if labels else "") + stored_name(name)
        stored[f"{renamed[stem]}.{end}" if stem in renamed else plain] = value
    write_safetensors(folder / "model.safetensors", stored)
    save_vocabulary(folder)
    return folder


def save_vocabulary(folder: Path) -> None:
    library().save(str(folder / "tokenizer.json"))
    roles = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), SPECIAL))
    roles |= {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))


def converted(folder: Path) -> Path:
    convert(folder, folder / "out.gguf", mix_of("f32"))
    return folder / "out.gguf"


def test_ids_are_those_of_the_library(tmp_path: Path) -> None:
    mine = kvarn.load_tokenizer(converted(write_folder(tmp_path)))
    theirs = library()
    for text in TEXTS:
        assert mine.encode(text, bos=True, special=True) == theirs.encode(text).ids, text


def test_keys_are_those_of_llama_cpps_converter(tmp_path: Path) -> None:
    file = open_gguf(converted(write_folder(tmp_path)))
    expected = {
        "general.architecture": "bert",
        "bert.context_length": 48,
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": PIECES,
        "tokenizer.ggml.token_type_count": 1,
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.padding_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.add_sep_token": True,
    }
    for key, value in expected.items():
        assert file.metadata[key] == value, key
    np.testing.assert_allclose(file.metadata["tokenizer.ggml.scores"], SCORES)
    kinds = [3, 3, 3, 2, *[1] * len(WORDS), 3]
    assert list(file.metadata["tokenizer.ggml.token_type"]) == kinds
    charsmap = bytes(file.metadata["tokenizer.ggml.precompiled_charsmap"])
    assert charsmap == CHARSMAP
    assert file.tensors["position_embd.weight"].shape == (48, 64)


def test_sentencepieces_file_gives_the_same_vocabulary(tmp_path: Path) -> None:
    write_folder(tmp_path)
    before = open_gguf(converted(tmp_path)).metadata
    (tmp_path / "tokenizer.json").unlink()
    decoder = {str(len(PIECES) - 1): {"content": "<mask>", "special": True}}
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    vocabularies.save_settings(tmp_path, **settings, added_tokens_decoder=decoder)
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(text, score, 1) for text, score in zip(WORDS, SCORES[4:])]
    name = "sentencepiece.bpe.model"
    vocabularies.save_sentencepiece(tmp_path, pieces, 1, charsmap=CHARSMAP, name=name)
    roles = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "unk_token_id": 3}
    config = json.loads((tmp_path / "config.json").read_text()) | roles
    (tmp_path / "config.json").write_text(json.dumps(config))
    after = open_gguf(converted(tmp_path)).metadata
    for key in before:
        if key.startswith("tokenizer.") and not key.endswith(
            ("mask_token_id", "seperator_token_id")
        ):
            np.testing.assert_array_equal(after[key], before[key], key)


def test_vectors_are_those_of_the_stored_weights(tmp_path: Path) -> None:
    model = kvarn.load_embedder(converted(write_folder(tmp_path)), pooling="cls")
    for text in TEXTS[:3]:
        ids = model.tokenizer.encode(text, bos=True)
        expected = hidden_states(CASE, ids, [0] * len(ids))[0]
        found = model.embed(text)[0]
        np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=2e-5)


def test_rerankers_read_pairs_as_the_library_joins_them(tmp_path: Path) -> None:
    case = TinyEncoder(n_tokens=len(PIECES), labels=1)
    model = kvarn.load_embedder(converted(write_folder(tmp_path, labels=1)))
    query = TEXTS[0]  # of texts, those without what the library takes for control tokens
    texts = [text for text in TEXTS if text.strip() and "<" not in text]
    expected = []
    for text in texts:
        ids = library().encode(query, text).ids
        expected.append(scores(case, hidden_states(case, ids, [0] * len(ids))[0])[0])
    np.testing.assert_allclose(model.rank(query, texts), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("model", "byte_fallback"), True, "byte_fallback is true"),
        (("model", "unk_id"), None, "unk_id is null, expected a token's"),
        (("model", "vocab"), [["a", 1.0], ["b"]], "no list of texts and scores"),
        (("normalizer",), {"type": "Lowercase"}, "Lowercase.* changes texts"),
        (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": "*"}, "not base64"),
    ],
)
def test_what_a_file_cannot_have_is_refused(
    path: tuple[str, ...], value: object, words: str, tmp_path: Path
) -> None:
    write_folder(tmp_path)
    saved = json.loads((tmp_path / "tokenizer.json").read_text())
    inner = saved
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    with pytest.raises(ConvertError, match=words):
        converted(tmp_path)


def test_a_table_of_padding_alone_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, pad_token_id=60)
    with pytest.raises(ConvertError, match="pad_token_id is 60, expected below 49"):
        converted(tmp_path)
