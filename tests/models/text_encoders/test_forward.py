"""Text encoders compute what plain NumPy in float64 does, text by text."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import kvarn
from kvarn.jit.arena import Arena
from kvarn.models.config.text_encoders import TextEncoderConfig
from kvarn.models.errors import ModelError
from kvarn.models.text_encoders import Rows, TextEncoder, TextEncoderWeights
from kvarn.ops.cpu import CPU
from kvarn.runtime.embedding import normalised
from kvarn.runtime.embedding.texts import Ids
from kvarn.runtime.engine import on_engine
from kvarn.runtime.gguf import open_gguf

from ..plain_text_encoders import hidden_states, scores
from ..tiny_text_encoders import TinyEncoder, write

CASES = {
    "bert": TinyEncoder(),
    "bert, fused qkv": TinyEncoder(fused_qkv=True, n_heads=1),
    "bert, odd heads": TinyEncoder(n_embd=66, n_heads=2),
    "nomic-bert": TinyEncoder("nomic-bert"),
    "nomic-bert-moe": TinyEncoder("nomic-bert-moe", n_layers=4, n_experts=5),
    "modern-bert": TinyEncoder("modern-bert", n_layers=5),
    "modern-bert, silu": TinyEncoder("modern-bert", activation="silu"),
    "modern-bert, window": TinyEncoder("modern-bert", n_layers=5, window=6),
    "gemma-embedding": TinyEncoder(
        "gemma-embedding", n_layers=7, n_heads=3, n_kv_heads=1, head_dim=32, window=8, period=6
    ),
    "gemma-embedding, other sizes": TinyEncoder(
        "gemma-embedding", n_heads=4, n_kv_heads=2, head_dim=8, window=5, period=2
    ),
}
UNTYPED = ("modern-bert", "gemma-embedding")
LENGTHS = (1, 2, 7, 7, 7, 8, 33, 48)


def loaded(path: Path, max_rows: int) -> TextEncoder:
    file = open_gguf(path)
    config = TextEncoderConfig.from_metadata(file.metadata)
    weights = on_engine(TextEncoderWeights.load, file.tensors, config, Arena(0), CPU)
    return TextEncoder(config, weights, max_rows)


def some_rows(case: TinyEncoder, lengths: tuple[int, ...]) -> Rows:
    rng = np.random.default_rng(3)
    n = sum(lengths)
    kinds = rng.integers(0, 2, n) if case.architecture not in UNTYPED else np.zeros(n)
    ids = rng.integers(0, case.n_vocab, n)
    return Rows(ids.astype(np.int32), kinds.astype(np.int32), lengths)


def expected(case: TinyEncoder, rows: Rows) -> np.ndarray:
    parts, first = [], 0
    for n in rows.lengths:
        span = slice(first, first + n)
        parts.append(hidden_states(case, rows.ids[span].tolist(), rows.types[span].tolist()))
        first += n
    return np.concatenate(parts)


@pytest.mark.parametrize(
    "case",
    [*CASES.values(), replace(CASES["nomic-bert-moe"], experts_bias=True)],
    ids=[*CASES, "nomic-bert-moe, bias"],
)
def test_hidden_states_of_several_texts_equal_those_of_each_alone(
    case: TinyEncoder, tmp_path: Path
) -> None:
    rows = some_rows(case, LENGTHS)
    encoder = loaded(write(tmp_path / "tiny.gguf", case), sum(LENGTHS))
    hidden = on_engine(encoder.forward, rows)
    np.testing.assert_allclose(hidden, expected(case, rows), atol=2e-5)


@pytest.mark.parametrize(
    "case",
    [*CASES.values(), replace(CASES["gemma-embedding"], n_dense=96)],
    ids=[*CASES, "gemma-embedding, dense"],
)
def test_vectors_are_llama_cpps(
    case: TinyEncoder, llama_oracle: ModuleType, tmp_path: Path
) -> None:
    path = write(tmp_path / "tiny.gguf", case)
    texts = [some_rows(case, (n,)).ids.tolist() for n in (1, 9, case.n_ctx)]
    with llama_oracle.oracle(path, case.n_ctx, case.n_vocab, embeds=True) as oracle:
        expected = normalised(np.stack([oracle.pooled(ids, case.n_embd) for ids in texts]))
    found = kvarn.load_embedder(path).embed_ids([Ids(ids, len(ids)) for ids in texts])
    np.testing.assert_allclose(found, expected, atol=2e-3)  # llama.cpp rounds gelu to 16 bits


@pytest.mark.parametrize("dense", [True, False])
def test_classifiers_score_first_hidden_states(dense: bool, tmp_path: Path) -> None:
    case = TinyEncoder(labels=2, dense=dense)
    encoder = loaded(write(tmp_path / "tiny.gguf", case), 8)
    first = np.random.default_rng(4).normal(0, 1, (3, case.n_embd)).astype(np.float32)
    found = on_engine(encoder.scores, first)
    np.testing.assert_allclose(found, [scores(case, x.astype(float)) for x in first], atol=1e-5)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"attention.head_count": 5}, "attention.head_count is 5, expected a divisor of 64"),
        ({"feed_forward_length": 97}, "ffn_up.weight has shape"),
        ({"block_count": 4}, "blk.3.attn_output.weight is missing"),
        ({"block_count": 2}, "is unknown to architecture bert"),
        ({"context_length": 49}, "position_embd.weight has shape"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(
    extra: dict[str, int], words: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "tiny.gguf", TinyEncoder(), extra)
    with pytest.raises(ModelError, match=words):
        loaded(path, 8)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"expert_used_count": 6}, "expert_used_count is 6, expected an integer from 1 to 5"),
        ({"expert_count": 6}, "blk.1.ffn_gate_inp.weight has shape"),
        ({"moe_every_n_layers": 3}, "blk.3.ffn_up.weight is missing"),
        ({"moe_every_n_layers": 0}, "blk.1.ffn_up.weight is missing"),
    ],
)
def test_experts_that_do_not_fit_together_are_refused(
    extra: dict[str, int], words: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "tiny.gguf", CASES["nomic-bert-moe"], extra)
    with pytest.raises(ModelError, match=words):
        loaded(path, 8)


def test_an_unknown_activation_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", TinyEncoder("modern-bert", activation="relu"))
    with pytest.raises(ModelError, match="hidden_activation is 'relu', expected gelu, "):
        loaded(path, 8)


@pytest.mark.parametrize(
    ("ids", "types", "lengths", "words"),
    [
        ([9999], [0], (1,), "a token id outside"),
        ([1], [2], (1,), "a token type outside"),
        ([1] * 49, [0] * 49, (49,), "a text of 49 tokens, expected 1 to 48"),
        ([1, 1], [0, 0], (3,), "2 tokens in texts of 3"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    ids: list[int], types: list[int], lengths: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    encoder = loaded(write(tmp_path / "tiny.gguf", TinyEncoder()), 64)
    rows = Rows(np.array(ids, np.int32), np.array(types, np.int32), lengths)
    with pytest.raises(ModelError, match=words):
        encoder.forward(rows)
