"""The same ids and bytes as llama.cpp on random texts, where llama-cpp-python is installed."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvarn.runtime.tokenizer import load_tokenizer

from . import tiny_vocabs

N_TEXTS = 80


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        ("bpe", {"tokenizer.ggml.pre": "gpt-2"}),
        ("bpe", {"tokenizer.ggml.pre": "kimi-k2"}),
        ("bpe", {"tokenizer.ggml.pre": "afmoe", "tokenizer.ggml.add_bos_token": True}),
        ("bpe", {"tokenizer.ggml.pre": "deepseek-llm", "tokenizer.ggml.add_eos_token": True}),
        ("plain", {"tokenizer.ggml.model": "gemma4"}),
        ("spm", {}),
        ("spm", {"tokenizer.ggml.add_space_prefix": False, "general.name": "phi3"}),
        ("bert", {"tokenizer.ggml.normalizer.strip_accents": False}),
        ("ugm", {}),
        ("ugm", {"tokenizer.ggml.remove_extra_whitespaces": False}),
        ("ugm-joined", {"tokenizer.ggml.add_space_prefix": False}),
    ],
    ids=str,
)
def test_random_texts(
    base: str,
    changes: dict[str, Any],
    golden: dict[str, Any],
    llama_vocab: ModuleType,
    tmp_path: Path,
) -> None:
    metadata = golden["vocabularies"][base] | changes
    path = llama_vocab.write_vocab(tmp_path / "vocab.gguf", metadata)
    compare(path, llama_vocab, N_TEXTS, tidied=base == "bert")


@pytest.mark.data
@pytest.mark.parametrize("name", ["llama-spm", "phi-3", "qwen2", "falcon", "bert-bge"])
def test_published_vocabularies(name: str, data_dir: Path, llama_vocab: ModuleType) -> None:
    path = data_dir / "vocab" / f"ggml-vocab-{name}.gguf"
    compare(path, llama_vocab, N_TEXTS, tidied=name == "bert-bge")


def compare(path: Path, llama_vocab: ModuleType, n_texts: int, tidied: bool) -> None:
    """Facts, pieces, ids and, where llama.cpp's detokeniser keeps all spaces, bytes."""
    rng = random.Random(3)
    tokenizer = load_tokenizer(path)
    with llama_vocab.llama_vocab(path) as oracle:
        facts = oracle.facts()
        assert sorted(tokenizer.eog_ids) == facts["eog_ids"]
        assert facts["roles"].items() <= tokenizer.roles.items()
        for token in range(0, tokenizer.n_vocab, max(1, tokenizer.n_vocab // 2000)):
            assert tokenizer.piece(token) == oracle.piece(token)
        keeps_spaces = tokenizer.model in ("llama", "t5") or tidied
        for _ in range(n_texts):
            text = tiny_vocabs.random_text(rng).encode()
            if rng.random() < 0.2:
                text = tiny_vocabs.damaged(text, rng)
            bos, special = rng.random() < 0.5, rng.random() < 0.5
            ids = oracle.encode(text, bos, special)
            assert tokenizer.encode(text, bos=bos, special=special) == ids, text
            if keeps_spaces:
                assert tokenizer.decode_bytes(ids, special) == oracle.decode(ids, special)
