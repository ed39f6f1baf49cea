"""Folders whose files are made to harm, or merely odd."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import gguf
import pytest

from kvarn.convert.errors import ConvertError
from kvarn.convert.hf import convert
from kvarn.convert.hf.vocabulary import library
from kvarn.convert.quantize.mixes import mix_of
from kvarn.runtime.gguf import open_gguf

from . import hf_folders, vocabularies


def converted(folder: Path) -> gguf.GGUFReader | dict[str, Any]:
    convert(folder, folder / "out.gguf", mix_of("f32"))
    with open_gguf(folder / "out.gguf") as file:
        return {key: file.metadata[key] for key in file.metadata}


def refusal(folder: Path) -> str:
    with pytest.raises(ConvertError) as refused:
        converted(folder)
    assert "\n" not in str(refused.value)
    assert not (folder / "out.gguf").exists()
    return str(refused.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_hidden_layers": 3_000_000}, "num_hidden_layers is 3000000"),
        ({"vocab_size": 1 << 24}, "vocab_size is 16777216"),
        ({"vocab_size": 400_000}, "296 rows for 400000 tokens"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"head_dim": 15}, "heads of 15, expected an even number"),
        ({"num_attention_heads": 128}, "num_attention_heads is 128"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"architectures": [["x"]]}, "architecture"),
        ({"_name_or_path": 5}, "_name_or_path is 5"),
        ({"rms_norm_eps": 1e308}, "rms_norm_eps"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "factor is missing"),
        ({"x": "\ud800"}, "surrogates not allowed"),
        ({"bos_token_id": 1 << 40}, "out of range|expected a whole number"),
    ],
)
def test_odd_configurations_are_refused_by_name(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    hf_folders.write_llama(tmp_path)
    values = {**hf_folders.LLAMA, **config}
    (tmp_path / "config.json").write_text(json.dumps(values))
    if "bos_token_id" in config:  # beyond the vocabulary: none, as in llama.cpp
        assert "tokenizer.ggml.bos_token_id" not in converted(tmp_path)
    else:
        assert message in refusal(tmp_path)


def test_whole_numbers_may_be_written_as_fractions(tmp_path: Path) -> None:
    hf_folders.write_llama(tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text('{"top_k": 50.0, "temperature": 1}')
    keys = converted(tmp_path)
    assert keys["general.sampling.top_k"] == 50
    (tmp_path / "out.gguf").unlink()
    path.write_text('{"top_k": 50.5}')
    assert "top_k is 50.5, expected a whole number" in refusal(tmp_path)
    path.write_text(f'{{"top_k": {1 << 40}}}')
    assert "general.sampling.top_k" in refusal(tmp_path)


def test_a_card_says_what_it_likes(tmp_path: Path) -> None:
    hf_folders.write_llama(tmp_path)
    card = tmp_path / "README.md"
    card.write_text("---\nlicense: [5]\nversion: 1.0\nlanguage:\n- no\n---\n# text")
    keys = converted(tmp_path)
    assert (keys["general.license"], keys["general.version"]) == ("5", "1.0")
    assert keys["general.languages"] == ["no"]
    (tmp_path / "out.gguf").unlink()
    card.write_text("---\na: &a [x, x]\nlicense: [*a, *a]\n---\n")
    assert "an alias" in refusal(tmp_path)
    card.write_text("---\nlicense: {a: b}\n---\n")
    assert "general.license" in refusal(tmp_path)


def save_tokenizer(folder: Path, **changes: Any) -> None:
    tokens = [chr(33 + i) for i in range(90)] + ["ab", "<|end|>"]
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 91 + [3],
        "tokenizer.ggml.merges": ["a b"],
    }
    saved = {**vocabularies.tokenizer_json(metadata, None, None), **changes}
    (folder / "tokenizer.json").write_text(json.dumps(saved))


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
        {
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 9}] * 12,
        },
    ],
    ids=["panic", "bomb"],
)
def test_the_library_may_die_and_we_do_not(normalizer: dict[str, Any], tmp_path: Path) -> None:
    hf_folders.write_llama(tmp_path)
    (tmp_path / "tokenizer.model").unlink()
    save_tokenizer(tmp_path, normalizer=normalizer)
    assert "the tokenizers library could not read it" in refusal(tmp_path)


def test_the_library_gets_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def run(*_: object, env: dict[str, str], **__: object) -> subprocess.CompletedProcess[bytes]:
        seen.update(env)
        return subprocess.CompletedProcess([], 0, b'{"error": "seen"}')

    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setattr(library.subprocess, "run", run)
    with pytest.raises(ConvertError, match="seen"):
        library.read("a file", {}, 0, [])
    assert "PYTHONPATH" in seen and "secret" not in seen.values()


def test_the_library_may_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = tmp_path / "worker.py"
    loop.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(library, "_SECONDS", 1)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    with pytest.raises(ConvertError, match="it took more than 1 s"):
        library.read("tokenizer.json", {"saved": "{}"}, 2, [])


def test_padding_has_no_say(tmp_path: Path) -> None:
    hf_folders.write_llama(tmp_path)
    (tmp_path / "tokenizer.model").unlink()
    padding = {
        **{"strategy": {"Fixed": 1 << 40}, "direction": "Right", "pad_to_multiple_of": None},
        **{"pad_id": 0, "pad_type_id": 0, "pad_token": "x"},
    }
    save_tokenizer(tmp_path, padding=padding)
    assert converted(tmp_path)["tokenizer.ggml.pre"] == "gpt-2"  # as without it


@pytest.mark.parametrize(
    "merges", [["ab"], [""], ["a b c"], ["a "], [["a"]], [["a", 5]], [["a", "b"], "a b"], "a b"]
)
def test_a_merge_is_two_texts(merges: Any, tmp_path: Path) -> None:
    hf_folders.write_llama(tmp_path)
    (tmp_path / "tokenizer.model").unlink()
    pieces = vocabularies.sentencepiece_json(vocabularies.small_pieces(296))
    pieces["model"]["merges"] = merges
    (tmp_path / "tokenizer.json").write_text(json.dumps(pieces))
    assert "merges" in refusal(tmp_path)


@pytest.mark.parametrize("token", [None, [], {}, False, "", "5", 1.0, -1, 1 << 40])
def test_an_id_is_a_whole_number(token: Any, tmp_path: Path) -> None:
    hf_folders.write_llama(tmp_path)
    (tmp_path / "tokenizer.model").unlink()
    pieces = vocabularies.sentencepiece_json(vocabularies.small_pieces(296))
    pieces["model"]["vocab"]["▁the"] = token
    (tmp_path / "tokenizer.json").write_text(json.dumps(pieces))
    assert "id" in refusal(tmp_path)


@pytest.mark.parametrize("value", [10**400, "hot", [1], True, {}])
def test_a_temperature_is_a_number(value: Any, tmp_path: Path) -> None:
    hf_folders.write_llama(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": value}))
    assert "temp" in refusal(tmp_path)
