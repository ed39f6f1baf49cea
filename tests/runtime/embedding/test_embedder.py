"""Vectors and scores of texts: plain NumPy in float64 for text encoders, a model's own contexts for
models that generate."""

from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.models.errors import ModelError
from kvarn.runtime.embedding import Embedder
from kvarn.runtime.embedding.pooling import EmbeddingError, pooling_of_file
from kvarn.runtime.embedding.texts import Ids, passes_of
from kvarn.runtime.engine import on_engine

from ...models.plain_text_encoders import hidden_states, scores
from ...models.tiny_text_encoders import TinyEncoder, write

TEXTS = [
    "the man eats bread",
    "a mill",
    "The Mill stood by the river, river, river.",
    "sky",
    "é ! xyzzy ?",
    "a woman eats bread .",
]
CLS, SEP, UNK = 2, 3, 1


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoders")


def embedder(folder: Path, case: TinyEncoder, pooling: str | None = None) -> Embedder:
    return kvarn.load_embedder(write(folder / "tiny.gguf", case), pooling=pooling)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_vector_pools_the_hidden_states_of_its_text(pooling: str, folder: Path) -> None:
    case = TinyEncoder(pooling={"mean": 1, "cls": 2, "last": 3}[pooling])
    model = embedder(folder, case)
    pools = {"mean": lambda x: x.mean(0), "cls": lambda x: x[0], "last": lambda x: x[-1]}
    expected = []
    for text in TEXTS:
        ids = model.tokenizer.encode(text, bos=True)
        assert ids[0] == CLS and ids[-1] == SEP
        expected.append(unit(pools[pooling](hidden_states(case, ids, [0] * len(ids)))))
    vectors = model.embed(TEXTS)
    assert vectors.dtype == np.float32 and model.pooling == pooling
    np.testing.assert_allclose(vectors, expected, atol=2e-5)


def test_order_and_neighbours_do_not_matter(folder: Path) -> None:
    model = embedder(folder, TinyEncoder())
    together = model.embed(TEXTS)
    np.testing.assert_allclose(model.embed(TEXTS[::-1])[::-1], together, atol=2e-6)
    alone = np.concatenate([model.embed(text) for text in TEXTS])
    np.testing.assert_allclose(alone, together, atol=2e-6)


def test_passes_hold_all_texts_once_and_few_tokens() -> None:
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, 90, 200).tolist()
    texts = [Ids([1] * n, n) for n in lengths]
    passes = passes_of(texts, 60)
    assert sorted(i for numbers in passes for i in numbers) == list(range(200))
    sizes = [[lengths[i] for i in numbers] for numbers in passes]
    assert all(sum(one) <= 60 or len(one) == 1 for one in sizes)
    flat = [n for one in sizes for n in one]
    assert flat == sorted(flat)


def test_what_the_user_says_overrules_the_file(folder: Path) -> None:
    model = embedder(folder, TinyEncoder(pooling=1), "cls")
    assert model.pooling == "cls"


def test_long_texts_are_refused_or_cut_before_their_last_token(folder: Path) -> None:
    case = TinyEncoder(n_ctx=6)
    model = embedder(folder, case)
    text = "the man eats bread by the river"
    with pytest.raises(EmbeddingError, match="text 2 has 9 tokens, and the model reads at most 6"):
        model.embed(["sky", text])
    ids = model.tokenizer.encode(text, bos=True)
    expected = unit(hidden_states(case, [*ids[:5], SEP], [0] * 6).mean(0))
    np.testing.assert_allclose(model.embed(text, truncate=True)[0], expected, atol=2e-5)


@pytest.mark.parametrize("texts", [[], [""], ["sky", " \n"]])
def test_nothing_is_no_text(texts: list[str], folder: Path) -> None:
    with pytest.raises(EmbeddingError, match=r"no texts|is empty"):
        embedder(folder, TinyEncoder()).embed(texts)


@pytest.mark.parametrize("dense", [True, False])
def test_rerankers_score_pairs(dense: bool, folder: Path) -> None:
    case = TinyEncoder(labels=1, dense=dense, pooling=None)
    model = embedder(folder, case)
    assert model.pooling == "rank"
    query = "the river"
    first = model.tokenizer.encode(query, bos=True)
    expected = []
    for text in TEXTS:
        second = [*model.tokenizer.encode(text), SEP]
        kinds = [0] * len(first) + [1] * len(second)
        expected.append(scores(case, hidden_states(case, first + second, kinds)[0])[0])
    np.testing.assert_allclose(model.rank(query, TEXTS), expected, atol=2e-5)
    with pytest.raises(EmbeddingError, match="makes no vectors"):
        model.embed(TEXTS)
    with pytest.raises(EmbeddingError, match="the query is empty"):
        model.rank(" ", TEXTS)


def test_models_that_make_vectors_score_nothing(folder: Path) -> None:
    with pytest.raises(EmbeddingError, match="scores no texts"):
        embedder(folder, TinyEncoder()).rank("sky", TEXTS)


@pytest.mark.parametrize(
    ("case", "pooling", "words"),
    [
        (TinyEncoder(pooling=None), None, "give pooling mean or cls"),
        (TinyEncoder(pooling=0), None, "give pooling mean or cls"),
        (TinyEncoder(pooling=9), None, "bert.pooling_type is 9, expected 0 to 4"),
        (TinyEncoder(), "rank", "no classifier"),
        (TinyEncoder(), "max", "pooling is 'max', expected one of mean, cls, last, rank"),
    ],
)
def test_a_way_to_pool_is_needed(
    case: TinyEncoder, pooling: str | None, words: str, folder: Path
) -> None:
    with pytest.raises(EmbeddingError, match=words):
        embedder(folder, case, pooling)


def test_a_text_encoder_generates_nothing(folder: Path) -> None:
    path = write(folder / "tiny.gguf", TinyEncoder())
    with pytest.raises(ModelError, match=r"is a text encoder \(bert\), which makes vectors"):
        kvarn.load(path)


def own_states(model: kvarn.Model, ids: list[int]) -> np.ndarray:
    """The hidden states of a context that reads these ids in one pass."""
    with model.context(len(ids)) as context:
        return np.array(on_engine(context.reader.forward, ids, None), np.float64)


def test_models_that_generate_pool_their_hidden_states() -> None:
    path = kvarn.load().path
    with pytest.raises(EmbeddingError, match=r"generates text .*: give pooling mean"):
        kvarn.load_embedder(path)
    with pytest.raises(EmbeddingError, match="its first token knows nothing"):
        kvarn.load_embedder(path, pooling="cls")
    model = kvarn.load(path)
    states = [own_states(model, model.tokenizer.encode(text, bos=True)) for text in TEXTS]
    mean = unit(np.array([x.mean(0) for x in states]))
    last = unit(np.array([x[-1] for x in states]))
    np.testing.assert_allclose(
        kvarn.load_embedder(path, pooling="mean").embed(TEXTS), mean, atol=1e-3
    )
    np.testing.assert_allclose(model.embed(TEXTS, "last"), last, atol=1e-3)
    with pytest.raises(EmbeddingError, match="expected mean or last"):
        model.embed(TEXTS, "cls")


@pytest.mark.parametrize("value", [np.array([1, 2]), "mean", True, 9, -1, ["mean"]])
def test_a_pooling_that_is_no_known_number_is_refused(value: object) -> None:
    with pytest.raises(EmbeddingError, match=r"bert\.pooling_type is .*, expected 0 to 4"):
        pooling_of_file("bert", {"bert.pooling_type": value})
    assert pooling_of_file("bert", {"bert.pooling_type": 1}) == "mean"
