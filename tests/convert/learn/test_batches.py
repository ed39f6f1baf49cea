"""What is learned from, against NumPy over the keys and values as stored; needs no torch."""

from pathlib import Path

import numpy as np
import pytest

from kvarn.convert.learn.labels import Scores, make_batch
from kvarn.convert.learn.observer import ObservedFull, Observer, stored_keys
from kvarn.convert.learn.recall import measure, signatures, sketches
from kvarn.convert.learn.settings import LearnError, Settings
from kvarn.convert.learn.texts import Texts
from kvarn.ops.reference.attention import read_kv
from kvarn.ops.reference.select import nearest_reference, pack_bits
from kvarn.runtime.attend.encoders import SimHash
from kvarn.runtime.attend.sparse import SEED
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.store import Ram
from lab.peers.model import Shape, write_model

SHAPE = Shape(n_layers=1, n_embd=96, n_heads=4, n_kv_heads=2, head_dim=24, n_ff=32, n_vocab=512)
N = 1536
SETTINGS = Settings(length=N, tokens=N, sink=16, window=32, labels=20, negatives=300)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("learn") / "tiny.gguf"
    write_model(path, "f16", SHAPE)
    return load(path)


def observed(model: Model, kind: str = "f16") -> tuple:
    """A context of N tokens that were read, and what its observer noted of the last chunk."""
    observer = Observer()
    context = model.context(N, ObservedFull(observer), store=Ram(kind, kind))
    observer.rows = np.array([], np.int64)
    ids = np.random.default_rng(0).integers(0, 512, N).tolist()
    context.prefill(ids[:1024])
    observer.rows = np.array([0, 3, 200, 511])
    context.prefill(ids[1024:])
    view = observer.views[0]
    keys, values = read_kv(view.store.segments(0), view.store.layout, 2, 0, N)
    return context, observer, keys, values


def contributions(q, keys, values, last: int) -> np.ndarray:
    """a_t |v_t| of each query head (4, last) in float64, from lemma 4.1."""
    out = np.empty((4, last))
    for h in range(4):
        k, v = (x[:last, h // 2].astype(np.float64) for x in (keys, values))
        scores = k @ q[h].astype(np.float64) / np.sqrt(24)
        out[h] = np.exp(scores - scores.max()) * np.linalg.norm(v, axis=1)
    return out


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
def test_keys_are_gathered_as_stored(model: Model, kind: str) -> None:
    context, observer, keys, _ = observed(model, kind)
    positions = np.random.default_rng(1).integers(0, N, (2, 1100))
    got = stored_keys(observer.views[0], positions)
    for j in range(2):
        np.testing.assert_array_equal(got[j], keys[positions[j], j])
    assert len(context.tokens) == N


@pytest.mark.parametrize("kind", ["f16", "q4_0"])
def test_labels_are_the_tokens_that_contribute_most(model: Model, kind: str) -> None:
    context, observer, keys, values = observed(model, kind)
    scores = Scores(model.config, observer.views[0], observer)
    q, positions = observer.queries[0], 1024 + observer.rows
    batch = make_batch(scores, q, positions, SETTINGS, np.random.default_rng(2))
    n_labels = batch.positive.sum(-1)
    assert (n_labels == SETTINGS.labels).all() and not (batch.positive & ~batch.allowed).any()
    assert batch.candidates.tolist() == (positions + 1 - 32 - 16).tolist()
    for i, position in enumerate(positions):
        last = position + 1 - 32
        want = contributions(q[:, i], keys, values, last)
        want[:, :16] = 0
        for h in range(4):
            best = np.argsort(want[h])[-20:]
            chosen = batch.keys[h // 2][batch.positive[h // 2, h % 2, i]]
            order = np.lexsort(chosen.T)
            expected = keys[best, h // 2]
            np.testing.assert_array_equal(chosen[order], expected[np.lexsort(expected.T)])
    assert len(context.tokens) == N


def test_weights_stand_for_the_whole_context(model: Model) -> None:
    _, observer, keys, _ = observed(model)
    scores = Scores(model.config, observer.views[0], observer)
    q, positions = observer.queries[0], 1024 + observer.rows
    batch = make_batch(scores, q, positions, SETTINGS, np.random.default_rng(2))
    n_candidates = positions.max() + 1 - 32 - 16
    np.testing.assert_allclose(batch.weight.sum(1), n_candidates, rtol=1e-5)
    assert (batch.weight[:, :20] == 1).all()
    each = {row.tobytes(): i for i, row in enumerate(keys[:, 0])}
    places = [each[row.tobytes()] for row in batch.keys[0]]
    assert len(set(places)) == len(places) and min(places) >= 16
    visible = np.array(places)[None] < (positions + 1 - 32)[:, None]
    np.testing.assert_array_equal(batch.allowed[0, 0], visible)


def test_all_keys_are_taken_where_there_are_no_more(model: Model) -> None:
    _, observer, *_ = observed(model)
    scores = Scores(model.config, observer.views[0], observer)
    all_negatives = Settings(length=N, tokens=N, sink=16, window=32, labels=20, negatives=10**6)
    batch = make_batch(
        scores, observer.queries[0], 1024 + observer.rows, all_negatives, np.random.default_rng(2)
    )
    assert batch.keys.shape == (2, N - 48, 24) and (batch.weight == 1).all()


def test_recall_counts_what_is_found(model: Model) -> None:
    """The true order finds all, its reverse nothing, and more bytes of sketches more."""
    context, observer, keys, values = observed(model)
    config, view = model.config, observer.views[0]
    scores = Scores(config, view, observer)
    q = observer.queries[0]
    asked = [(1024 + int(row), q[:, i]) for i, row in enumerate(observer.rows)]
    rankings = {
        "true": lambda q, stop: contributions(q, keys, values, stop),
        "reverse": lambda q, stop: -contributions(q, keys, values, stop),
        "reverse, rerank 100": lambda q, stop: -contributions(q, keys, values, stop),
        "reverse, rerank 50": lambda q, stop: -contributions(q, keys, values, stop),
        "sketch 3": sketches(3, config, view, N),
        "sketch 5": sketches(5, config, view, N),
    }
    recalls = {name: x.mean(0) for name, x in measure(scores, asked, rankings, SETTINGS).items()}
    np.testing.assert_array_equal(recalls["true"], 1)
    np.testing.assert_array_equal(recalls["reverse"], 0)
    np.testing.assert_array_equal(recalls["reverse, rerank 100"], 1)
    np.testing.assert_array_equal(recalls["reverse, rerank 50"], [0, 1])
    assert (recalls["sketch 3"] < recalls["sketch 5"]).all()
    assert len(context.tokens) == N


def test_signatures_rank_as_hash_chooses(model: Model) -> None:
    context, observer, keys, _ = observed(model)
    encoder, last = SimHash(32, 1), 1000
    q = np.ascontiguousarray(observer.queries[0][:, 0])
    ranked = signatures(encoder, model.config, observer.views[0], N)(q, last)
    planes = encoder.planes(24, 0)
    stored = np.stack([pack_bits(keys[:last, j] @ planes) for j in range(2)])
    for h, asked in enumerate(pack_bits(q @ planes)):
        group = np.array([[asked], [asked]])
        want = nearest_reference(group, stored, 32, (0, last, last), 30, SEED)[h // 2]
        np.testing.assert_array_equal(np.sort(np.argsort(ranked[h])[-30:]), want)
    assert len(context.tokens) == N


def test_texts_hold_some_contexts_back_and_give_every_other_once(
    model: Model, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("the mill stood by the river " * 400)
    (tmp_path / "b.txt").write_text("and nobody had the key of it " * 400)
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    texts = Texts(files, model.tokenizer, 700, seed=1)
    whole = [i for path in files for i in model.tokenizer.encode(path.read_text())]
    n, bos = len(whole) // 699, model.tokenizer.bos_id
    all_cuts = sorted((bos, *whole[i * 699 : (i + 1) * 699]) for i in range(n))
    held_out = [tuple(texts.held_out(i)) for i in range(texts.n_held_out)]
    for lap in range(2):
        others = [
            tuple(texts.context(lap * (n - len(held_out)) + i)) for i in range(n - len(held_out))
        ]
        assert sorted(held_out + others) == all_cuts
    assert Texts(files, model.tokenizer, 700, seed=1).context(3) == texts.context(3)
    assert Texts(files[::-1], model.tokenizer, 700, seed=1).digest != texts.digest
    with pytest.raises(LearnError, match="at least twice as much text"):
        Texts(files, model.tokenizer, len(whole), seed=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bits": 128}, "128 bits cannot be searched: use --bits 64"),
        ({"hidden": 64}, "hidden layers of 64 units cannot be learned: use --hidden 0"),
        ({"length": 500}, "500 tokens is too short .* at least 256 to choose from: 512 in all"),
        ({"tokens": 1000}, "--tokens 1000 is less than one context of 2048"),
        ({"seed": -1}, "seed is -1, expected 0 or more"),
        ({"loss": "hinge"}, "expected one of softmax, bce"),
    ],
)
def test_impossible_settings_are_refused_in_words(options: dict, words: str) -> None:
    with pytest.raises(LearnError, match=words):
        Settings(**({"length": 2048, "tokens": 4096} | options))
