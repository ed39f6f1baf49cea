"""Vocabularies of Hugging Face folders: tokens, kinds, scores, and the ids that they give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers

from kvarn.convert.hf.table import HF_ARCHITECTURES
from kvarn.convert.hf.vocabulary import read_vocabulary
from kvarn.runtime.gguf import open_gguf
from kvarn.runtime.tokenizer import Tokenizer

from ..models.tiny_models import finish
from . import vocabularies
from .vocabularies import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, small_json

LLAMA = HF_ARCHITECTURES["LlamaForCausalLM"]
PHI3 = HF_ARCHITECTURES["Phi3ForCausalLM"]
GEMMA3 = HF_ARCHITECTURES["Gemma3ForCausalLM"]
SEPARATOR = "\n__ggml_vocab_test__\n"


def converted(folder: Path, architecture: Any = LLAMA, **arguments: Any) -> dict[str, Any]:
    """The `tokenizer.*` keys of a folder's vocabulary, through a file."""
    arguments.setdefault("n_vocab", None)
    writer = gguf.GGUFWriter(folder / "vocab.gguf", "llama")
    read_vocabulary(folder, architecture, **arguments).add(writer)
    finish(writer)
    with open_gguf(folder / "vocab.gguf") as file:
        keys = {key: file.metadata[key] for key in file.metadata}
    return {k.removeprefix("tokenizer."): v for k, v in keys.items() if k.startswith("tokenizer.")}


def check_ids(keys: dict[str, Any], texts: list[str], expected: list[list[int]]) -> None:
    metadata = {f"tokenizer.{key}": value for key, value in keys.items()}
    tokenizer = Tokenizer.from_metadata(metadata)
    for text, ids in zip(texts, expected, strict=True):
        assert tokenizer.encode(text) == ids, text


def published(data_dir: Path, name: str) -> tuple[dict[str, Any], list[str], list[list[int]]]:
    """A published vocabulary's metadata, its texts, and transformers' ids of them.

    Old files call tokens that no file names user-defined; today's rule calls them unused.
    """
    path = data_dir / "vocab" / f"ggml-vocab-{name}.gguf"
    with open_gguf(path) as file:
        metadata = {key: file.metadata[key] for key in file.metadata}
    kinds = zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"])
    metadata["tokenizer.ggml.token_type"] = [
        UNUSED if text.startswith("[PAD") else int(kind) for text, kind in kinds
    ]
    texts = path.with_suffix(".gguf.inp").read_bytes().decode().split(SEPARATOR)[:46]
    lines = path.with_suffix(".gguf.out").read_text().split("\n")[:46]
    return metadata, texts, [[int(token) for token in line.split()] for line in lines]


@pytest.mark.data
@pytest.mark.parametrize("name", ["llama-bpe", "gpt-2"])
def test_byte_level_vocabularies_give_transformers_ids(
    name: str, data_dir: Path, tmp_path: Path
) -> None:
    metadata, texts, expected = published(data_dir, name)
    bos = "<|begin_of_text|>" if name == "llama-bpe" else None
    saved = vocabularies.tokenizer_json(metadata, vocabularies.PATTERNS[name], bos)
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    vocabularies.save_settings(tmp_path, bos_token=bos, eos_token="<|end_of_text|>")
    keys = converted(tmp_path, n_vocab=len(metadata["tokenizer.ggml.tokens"]))
    # The hash found the family, among some ninety.
    assert (keys["ggml.model"], keys["ggml.pre"]) == ("gpt2", name)
    for key in ("tokens", "merges"):
        assert keys[f"ggml.{key}"] == metadata[f"tokenizer.ggml.{key}"]
    assert list(keys["ggml.token_type"]) == metadata["tokenizer.ggml.token_type"]
    check_ids(keys, texts, expected)


@pytest.mark.data
@pytest.mark.parametrize("name", ["gpt-2", "qwen2"])
def test_vocab_and_merges_files_give_transformers_ids(
    name: str, data_dir: Path, tmp_path: Path
) -> None:
    metadata, texts, expected = published(data_dir, name)
    saved = vocabularies.tokenizer_json(metadata, vocabularies.PATTERNS[name], None)
    vocab, added = saved["model"]["vocab"], saved["added_tokens"]
    if name == "gpt-2":  # has its one special token in the vocabulary
        vocab |= {entry["content"]: entry["id"] for entry in added}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    merges = ["#version: 0.2", *saved["model"]["merges"], ""]
    (tmp_path / "merges.txt").write_text("\n".join(merges), encoding="utf-8")
    kind = {"gpt-2": "GPT2Tokenizer", "qwen2": "Qwen2Tokenizer"}[name]
    listed = {str(entry.pop("id")): entry for entry in added}
    vocabularies.save_settings(tmp_path, tokenizer_class=kind, added_tokens_decoder=listed)
    keys = converted(tmp_path, n_vocab=len(metadata["tokenizer.ggml.tokens"]))
    assert keys["ggml.pre"] == name
    assert keys["ggml.tokens"] == metadata["tokenizer.ggml.tokens"]
    assert list(keys["ggml.token_type"]) == metadata["tokenizer.ggml.token_type"]
    check_ids(keys, texts, expected)


@pytest.mark.data
@pytest.mark.parametrize("form", ["tokenizer.model", "tokenizer.json"])
def test_sentencepiece_vocabularies_give_transformers_ids(
    form: str, data_dir: Path, tmp_path: Path
) -> None:
    metadata, texts, expected = published(data_dir, "llama-spm")
    scores, types = metadata["tokenizer.ggml.scores"], metadata["tokenizer.ggml.token_type"]
    pieces = list(zip(metadata["tokenizer.ggml.tokens"], map(float, scores), map(int, types)))
    if form == "tokenizer.model":
        vocabularies.save_sentencepiece(tmp_path, pieces)
    else:
        saved = json.dumps(vocabularies.sentencepiece_json(pieces))
        (tmp_path / "tokenizer.json").write_text(saved)
    keys = converted(tmp_path)
    assert keys["ggml.model"] == "llama"
    check_ids(keys, texts, expected)


def test_sentencepiece_tokens_kinds_and_scores(tmp_path: Path) -> None:
    pieces = [
        ("<unk>", 0.0, UNKNOWN),
        ("<s>", 0.0, CONTROL),
        ("</s>", 0.0, CONTROL),
        ("<0x0A>", 0.0, BYTE),
        ("▁a", -1.5, NORMAL),
        ("b", -2.0, NORMAL),
        ("old", -3.0, UNUSED),
    ]
    vocabularies.save_sentencepiece(tmp_path, pieces)
    (tmp_path / "added_tokens.json").write_text('{"<tool>": 8, "far": 99}')
    added = {
        "7": {"content": "<|im_end|>", "special": False},
        "9": {"content": "▁▁x", "special": False},
        "2": {"content": "</s>", "special": True},
    }
    vocabularies.save_settings(
        tmp_path, added_tokens_decoder=added, add_bos_token=True, add_prefix_space=False
    )
    keys = converted(tmp_path, n_vocab=11)
    assert keys["ggml.tokens"] == [
        *["<unk>", "<s>", "</s>", "<0x0A>", "▁a", "b", "old", "<|im_end|>", "<tool>", "  x"],
        "[PAD10]",
    ]
    assert list(keys["ggml.token_type"]) == [
        *[UNKNOWN, CONTROL, CONTROL, BYTE, NORMAL, NORMAL, UNUSED],
        *[CONTROL, USER_DEFINED, USER_DEFINED, UNUSED],
    ]
    assert list(keys["ggml.scores"]) == [
        *[0, 0, -1000, 0, -1.5, -2, -3, -1000, -1000, -1000, -10000]
    ]
    assert keys["ggml.add_space_prefix"] is False
    # Phi 3 takes its added tokens as they are listed.
    kinds = converted(tmp_path, PHI3, n_vocab=11)
    assert list(kinds["ggml.token_type"])[7] == USER_DEFINED
    assert kinds["ggml.tokens"][9] == "▁▁x"


@pytest.mark.parametrize(
    ("settings", "dummy_prefix", "architecture", "expected"),
    [
        ({}, True, LLAMA, None),  # there is one where the file says nothing
        ({}, False, LLAMA, False),
        ({"add_prefix_space": True}, False, LLAMA, True),
        ({"add_prefix_space": None}, True, LLAMA, None),
        ({}, True, GEMMA3, False),
    ],
)
def test_the_space_before_a_text(
    settings: dict[str, Any],
    dummy_prefix: bool,
    architecture: Any,
    expected: bool | None,
    tmp_path: Path,
) -> None:
    vocabularies.save_sentencepiece(tmp_path, dummy_prefix=dummy_prefix)
    vocabularies.save_settings(tmp_path, **settings)
    assert converted(tmp_path, architecture).get("ggml.add_space_prefix") is expected


def test_special_tokens_merges_and_template(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(small_json()))
    vocabularies.save_settings(
        tmp_path, eos_token="<|end|>", pad_token={"content": "<|end|>"}, add_bos_token=False
    )
    (tmp_path / "config.json").write_text('{"bos_token_id": 3}')
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    keys = converted(tmp_path, pre="gpt-2", n_vocab=95)
    assert keys["ggml.pre"] == "gpt-2"
    assert keys["ggml.merges"] == ["a b"]
    assert keys["ggml.eos_token_id"] == keys["ggml.padding_token_id"] == 91
    assert keys["ggml.bos_token_id"] == 3
    assert keys["ggml.add_bos_token"] is False
    assert keys["chat_template"] == "{{ messages }}"
    assert keys["ggml.tokens"][90:] == ["ab", "<|end|>", "[PAD92]", "[PAD93]", "[PAD94]"]
    assert list(keys["ggml.token_type"])[90:] == [NORMAL, CONTROL, UNUSED, UNUSED, UNUSED]


def test_a_vocabulary_of_bytes_needs_no_merges(tmp_path: Path) -> None:
    """The tokenizers library is the oracle."""
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    tokens = [*sorted(alphabet), "<|end|>"]
    kinds = [NORMAL] * len(alphabet) + [CONTROL]
    names = ("tokens", "token_type", "merges")
    metadata = {f"tokenizer.ggml.{k}": v for k, v in zip(names, (tokens, kinds, []))}
    saved = vocabularies.tokenizer_json(metadata, None, None)
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    keys = converted(tmp_path, pre="gpt-2")
    assert "ggml.merges" not in keys
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = ["", "the mill", " Mühle\n\n", "水\x00\t", "👍🏽"]
    check_ids(keys, texts, [library.encode(text).ids for text in texts])


def test_a_vocabulary_of_gemma_4_has_merges_and_no_scores(tmp_path: Path) -> None:
    saved = vocabularies.sentencepiece_json(vocabularies.small_pieces())
    saved["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    n = len(saved["model"]["vocab"])
    for text, special in (("<|turn>", True), ("<|tool_call>", True), ("<eot>", False)):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        saved["added_tokens"].append({"id": n, "content": text, "special": special, **flags})
        n += 1
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    vocabularies.save_settings(tmp_path, bos_token="<s>", eos_token="</s>")
    architecture = HF_ARCHITECTURES["Gemma4ForCausalLM"]
    vocabulary = read_vocabulary(tmp_path, architecture, n)
    writer = gguf.GGUFWriter(None, "gemma4")
    vocabulary.add(writer)
    keys = {key: value.value for key, value in writer.kv_data[0].items()}
    assert keys["tokenizer.ggml.model"] == "gemma4" and "tokenizer.ggml.pre" not in keys
    assert set(keys["tokenizer.ggml.scores"]) == {-1000.0}
    assert keys["tokenizer.ggml.token_type"][-3:] == [3, 4, 4]
    assert keys["tokenizer.ggml.token_type"][:4] == [3, 3, 3, 6]
    assert keys["tokenizer.ggml.add_bos_token"] and not keys["tokenizer.ggml.add_space_prefix"]
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = ["the mill", "the  mill and\nthe mill", "the<|tool_call>mill", "Mühle"]
    keys = {key.removeprefix("tokenizer."): value for key, value in keys.items()}
    check_ids(keys, texts, [library.encode(text).ids for text in texts])
