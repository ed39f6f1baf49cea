"""Pre-tokenizers that are recognised by how they cut a text, not by a hash of the ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvarn.convert.errors import ConvertError
from kvarn.convert.hf import convert
from kvarn.convert.hf.vocabulary.pretokenizers import NAMES
from kvarn.convert.hf.vocabulary.rules import PROBES, name_of
from kvarn.convert.quantize.mixes import mix_of
from kvarn.runtime.gguf import open_gguf
from kvarn.runtime.tokenizer.pretokenizers import PRE_TOKENIZERS
from kvarn.runtime.tokenizer.split import split_words

from . import hf_folders, vocabularies

# As published: tokenizer.json of Qwen3.5, o200k_base (GPT-4o, gpt-oss).
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = vocabularies.PATTERNS | {"qwen35": _QWEN35, "gpt-4o": _O200K}
BYTE_LEVEL = {n: rules for n, rules in PRE_TOKENIZERS.items() if n in NAMES and rules.byte_level}


def words_of(name: str) -> list[list[str]]:
    return [split_words(text, PRE_TOKENIZERS[name].steps) for text in PROBES]


def cuts_of(words: list[str]) -> list[tuple[int, int]]:
    stops = [sum(map(len, words[: i + 1])) for i in range(len(words))]
    return list(zip([0, *stops], stops))


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_a_family_is_told_from_those_with_other_rules(name: str) -> None:
    rules = BYTE_LEVEL[name]
    cuts = [cuts_of(words) for words in words_of(name)]
    recognised = name_of(cuts, rules.ignore_merges, rules.add_bos)
    assert recognised is not None
    chosen = PRE_TOKENIZERS[recognised]
    # `\\s*[\\r\\n]` matches what `\\s*[\\r\\n]+` does.
    same = {name, recognised} <= {"qwen2", "bailingmoe", "bailingmoe2"}
    assert chosen.steps == rules.steps or same
    assert chosen.ignore_merges == rules.ignore_merges
    assert not chosen.add_bos or rules.add_bos


def folder_of(folder: Path, pattern: str | None, **model: Any) -> None:
    """A llama whose byte-level vocabulary no table knows."""
    tensors = hf_folders.llama_tensors()
    hf_folders.write_llama(folder, tensors=tensors)
    (folder / "tokenizer.model").unlink()
    tokens = [chr(33 + i) for i in range(90)] + ["ab", "<|new|>"]
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 91 + [3],
        "tokenizer.ggml.merges": ["a b"],
    }
    saved = vocabularies.tokenizer_json(metadata, pattern, None)
    saved["model"] |= model
    (folder / "tokenizer.json").write_text(json.dumps(saved))


@pytest.mark.parametrize("name", [name for name in PATTERNS if name != "llama-bpe"])
def test_a_vocabulary_without_a_hash_is_named_by_its_pattern(name: str, tmp_path: Path) -> None:
    told: list[str] = []
    folder_of(tmp_path, PATTERNS[name])
    convert(tmp_path, tmp_path / "m.gguf", mix_of("f32"), notice=told.append)
    with open_gguf(tmp_path / "m.gguf") as file:
        assert file.metadata["tokenizer.ggml.pre"] == name
    assert told == [
        f"the pre-tokenizer is {name} by its rules: llama.cpp's table of hashes does not know the "
        "vocabulary"
    ]


def test_a_family_that_would_add_a_token_is_not_taken(tmp_path: Path) -> None:
    """Llama 3's pattern and merges without its <|begin_of_text|>: glm4 adds none."""
    told: list[str] = []
    folder_of(tmp_path, PATTERNS["llama-bpe"], ignore_merges=True)
    convert(tmp_path, tmp_path / "m.gguf", mix_of("f32"), notice=told.append)
    assert "is glm4 by its rules" in told[0]


def test_rules_of_no_family_are_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, r"\p{L}+|\S")
    with pytest.raises(ConvertError, match="no known one cuts texts as it does"):
        convert(tmp_path, tmp_path / "m.gguf", mix_of("f32"))
