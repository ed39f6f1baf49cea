"""Published vocabularies with published cases: llama.cpp's, SentencePiece's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvarn.runtime.tokenizer import load_tokenizer

pytestmark = pytest.mark.data
SEPARATOR = "\n__ggml_vocab_test__\n"
NAMES = (
    *["llama-spm", "phi-3", "llama-bpe", "gpt-2", "falcon", "starcoder", "qwen2", "refact"],
    *["mpt", "deepseek-coder", "bert-bge"],
)


@pytest.mark.parametrize("name", NAMES)
def test_cases(name: str, data_dir: Path) -> None:
    path = data_dir / "vocab" / f"ggml-vocab-{name}.gguf"
    tokenizer = load_tokenizer(path)
    texts = path.with_suffix(".gguf.inp").read_bytes().decode().split(SEPARATOR)
    lines = path.with_suffix(".gguf.out").read_text().split("\n")
    expected = [[int(token) for token in line.split()] for line in lines]
    assert len(texts) == len(expected) == 47  # 46 cases and what follows the last separator
    for text, ids in list(zip(texts, expected))[:46]:
        assert tokenizer.encode(text) == ids, text
        if name != "bert-bge":  # WordPiece loses case and spacing
            assert tokenizer.decode(ids) == text
            streamed = "".join(map(tokenizer.stream().push, ids))
            assert streamed in (text, " " + text)


def test_sentencepiece_with_its_own_space_rules(data_dir: Path) -> None:
    folder = data_dir / "weights" / "babyllama-tok105"
    tokenizer = load_tokenizer(folder / "babyllama-tok105-f32.gguf")
    for case in json.loads((folder / "golden-tokenize.json").read_text()):
        assert tokenizer.encode(case["text"]) == case["ids"], case["text"]


def test_ids_of_a_greedy_run_give_its_text(data_dir: Path) -> None:
    folder = data_dir / "weights" / "stories260K"
    tokenizer = load_tokenizer(folder / "stories260K-f32.gguf")
    run = json.loads((folder / "golden-greedy.json").read_text())
    assert tokenizer.decode(run["ids"]).strip() == run["text"].strip()
    assert (
        tokenizer.encode(tokenizer.decode(run["prompt_ids"]).strip(), bos=True)
        == (run["prompt_ids"])
    )
