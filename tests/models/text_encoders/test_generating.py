"""Models that generate as encoders: vectors and scores are llama.cpp's, and what their own contexts
give; pairs are written into the file's template."""

from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest

import kvarn
from kvarn.runtime.embedding import Embedder, normalised
from kvarn.runtime.embedding.pooling import EmbeddingError
from kvarn.runtime.embedding.texts import Ids
from kvarn.runtime.engine import on_engine

from .. import tiny_cases, tiny_models

CASE = next(case for case in tiny_cases.CASES if case.name == "qwen3")
HEAD = np.random.default_rng(8).normal(0, 0.3, (2, CASE.n_embd)).astype(np.float32)
TEMPLATE = "<s>{query}:{document}</s>w5"
SEED = 77


def write(path: Path, pooling: int, head: np.ndarray | None = None, **more: Any) -> Path:
    """A qwen3 file; more: keys, without what they begin with."""
    writer = gguf.GGUFWriter(path, "qwen3")
    values = tiny_models.metadata(CASE) | {"tokenizer.ggml.add_eos_token": True}
    values |= {"qwen3.pooling_type": pooling}
    if head is not None:
        values |= {"qwen3.classifier.output_labels": ["yes", "no"]}
    tiny_models.add_metadata(writer, values | {f"tokenizer.{key}": v for key, v in more.items()})
    for name, array in tiny_models.tensors(CASE, SEED).items():
        writer.add_tensor(name, array)
    if head is not None:
        writer.add_tensor("cls.output.weight", head)
    tiny_models.finish(writer)
    return path


def last_state(path: Path, ids: list[int]) -> np.ndarray:
    model = kvarn.load(path)
    with model.context(len(ids)) as context:
        return np.array(on_engine(context.reader.forward, ids, None)[-1], np.float64)


def score(state: np.ndarray) -> float:
    weights = np.exp(HEAD.astype(np.float64) @ state)
    return float(weights[0] / weights.sum())


def some_ids() -> list[list[int]]:
    rng = np.random.default_rng(9)
    return [rng.integers(3, CASE.n_vocab, n).tolist() for n in (1, 2, 9, 40)]


def scores_of(model: Embedder, texts: list[list[int]]) -> np.ndarray:
    reader = model._reader
    return reader.scores(reader.vectors([Ids(ids, len(ids)) for ids in texts], "rank"))[:, 0]


@pytest.mark.parametrize(("number", "pooling"), [(1, "mean"), (3, "last")])
def test_vectors_are_llama_cpps(
    number: int, pooling: str, llama_oracle: ModuleType, tmp_path: Path
) -> None:
    path = write(tmp_path / "tiny.gguf", number)
    model = kvarn.load_embedder(path)
    assert model.pooling == pooling
    with llama_oracle.oracle(path, 64, CASE.n_vocab, embeds=True) as oracle:
        expected = normalised(np.stack([oracle.pooled(ids, CASE.n_embd) for ids in some_ids()]))
    found = model.embed_ids([Ids(ids, len(ids)) for ids in some_ids()])
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_scores_are_llama_cpps(llama_oracle: ModuleType, tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", 4, HEAD)
    with llama_oracle.oracle(path, 64, CASE.n_vocab, embeds=True) as oracle:
        expected = [oracle.pooled(ids, 2)[0] for ids in some_ids()]
    np.testing.assert_allclose(
        scores_of(kvarn.load_embedder(path), some_ids()), expected, atol=1e-3
    )


def test_scores_are_shares_of_yes(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", 4, HEAD)
    expected = [score(last_state(path, ids)) for ids in some_ids()]
    found = scores_of(kvarn.load_embedder(path), some_ids())
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_pairs_are_written_into_the_template_as_quotes(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", 4, HEAD, **{"chat_template.rerank": TEMPLATE})
    model = kvarn.load_embedder(path)
    tokens = model.tokenizer
    query, text = "w7 w8", "w9</s><s>w3"
    before, after = tokens.encode("<s>", special=True), tokens.encode("</s>w5", special=True)
    ids = [*before, *tokens.encode(f"{query}:{text}"), *after]
    assert ids[0] == 1 and ids.count(2) == 1  # of the template, not of the text
    expected = score(last_state(path, ids))
    np.testing.assert_allclose(model.rank(query, [text]), [expected], atol=1e-3)


def test_long_texts_are_cut_before_the_end_of_the_template(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", 4, HEAD, **{"chat_template.rerank": TEMPLATE})
    model = kvarn.load_embedder(path)
    long = "w9 w4 " * model.n_ctx
    with pytest.raises(EmbeddingError, match=r"text 1 with the query has .* tokens"):
        model.rank("w7", [long])
    kept = model.rank("w7", [long], truncate=True)
    assert kept.shape == (1,) and np.isfinite(kept).all()
    with pytest.raises(EmbeddingError, match="leaves no room for a text"):
        model.rank(long, ["w9"], truncate=True)


@pytest.mark.parametrize(
    ("head", "more", "words"),
    [
        (HEAD[:, :4], {}, r"cls.output.weight has shape \(2, 4\), expected \(2, 80\)"),
        (HEAD, {"chat_template.rerank": "{query}"}, "expected one with {query} and {document}"),
        (None, {}, "no classifier that scores texts"),
    ],
)
def test_rerankers_that_are_none_are_refused(
    head: np.ndarray | None, more: dict[str, str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(EmbeddingError, match=words):
        kvarn.load_embedder(write(tmp_path / "tiny.gguf", 4, head, **more))


def test_a_reranker_generates_as_the_model_that_it_was(tmp_path: Path) -> None:
    plain, ranks = write(tmp_path / "plain.gguf", 3), write(tmp_path / "ranks.gguf", 4, HEAD)
    np.testing.assert_array_equal(last_state(plain, [1, 5, 6]), last_state(ranks, [1, 5, 6]))
