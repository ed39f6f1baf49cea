"""Sparse methods: what they read is what the papers' formulas choose, and the rest is `full`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.evals.peers.model import Shape, write_model
from kvarn.jit import threads
from kvarn.ops.reference.attention import gathered_reference, read_kv
from kvarn.ops.reference.select import (
    largest_reference,
    nearest_reference,
    network_reference,
    pack_bits,
    tile_bounds_reference,
)
from kvarn.runtime.attend import (
    ATTENDS,
    Attend,
    AttendError,
    BoundAttend,
    Full,
    Hash,
    Quest,
    Sparse,
    TopK,
)
from kvarn.runtime.attend.encoders import SimHash
from kvarn.runtime.attend.sparse import SEED
from kvarn.runtime.attend.sparse.budget import Budget, layer_weights
from kvarn.runtime.engine import on_engine
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.packs import pack_info
from kvarn.runtime.store import Ram

COMMON = {"budget": 40, "sink": 4, "window": 16}
METHODS = [TopK(index="flat", **COMMON), Hash(**COMMON), TopK(index="sketch", **COMMON)]
BLOCKS = TopK(index="sketch", levels=2, **COMMON)
QUEST = Quest(**COMMON)
SHAPE = Shape(n_layers=2, n_embd=128, n_heads=4, n_kv_heads=2, head_dim=32, n_ff=96, n_vocab=512)


def name_of(method: Sparse) -> str:
    levels = " in blocks" if getattr(method, "levels", 1) == 2 else ""
    return getattr(method, "index", method.name) + levels


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("sparse") / "tiny.gguf"
    write_model(path, "f16", SHAPE)
    return load(path)


def ids_of(model: Model, n: int) -> list[int]:
    return np.random.default_rng(0).integers(0, model.config.n_vocab, n).tolist()


N = 1100
"""Tokens of a prompt: sketches begin with the first full segment."""


def read(model: Model, attend, n: int = N, steps: int = 4, **options) -> tuple:
    """A context after n tokens and some decoded ones, and the logits of each of those."""
    ids = ids_of(model, n + steps)
    context = model.context(n + steps, attend, **options)
    context.prefill(ids[:n])
    return context, np.stack([context.decode(token).copy() for token in ids[n:]])


class Spy(Attend, BoundAttend):
    """Keeps the last query and output of each layer of another method."""

    def __init__(self, method: Sparse) -> None:
        self.method, self.calls = method, {}

    def open(self, model, store, n_ctx):
        self.inner = self.method.open(model, store, n_ctx)
        return self

    def appended(self, layer, start, n_tokens) -> None:
        self.inner.appended(layer, start, n_tokens)

    def attend_prompt(self, layer, q, start, out) -> None:
        self.inner.attend_prompt(layer, q, start, out)

    def __call__(self, layer, q, start, out) -> None:
        self.inner(layer, q, start, out)
        self.calls[layer.index] = layer, q.copy(), start + 1, out.copy()


def chosen(method: Sparse, model: Model, layer: int, q, keys, stop: int) -> list[np.ndarray]:
    """The paper's formula in NumPy: the tokens each KV head attends."""
    n_kv_heads, k = keys.shape[1], 40 // 2
    first, last = method.sink, stop - method.window
    if isinstance(method, TopK):
        scores = np.stack([keys[:, h // 2] @ q[0, h] for h in range(4)])
        return largest_reference(scores, n_kv_heads, first, last, stop, k, SEED)
    if isinstance(method, Quest):
        return highest_tiles(q, keys, n_kv_heads, first, last, stop)
    network = SimHash(32, SEED).networks(model.config, layer).queries[0]

    def signatures(x) -> np.ndarray:
        return pack_bits(network_reference(x, network.weights, network.widths))

    stored = np.stack([signatures(keys[:, j]) for j in range(n_kv_heads)])
    return nearest_reference(
        signatures(q[0]).reshape(n_kv_heads, -1), stored, 32, first, last, stop, k, SEED
    )


def highest_tiles(q, keys, n_kv_heads: int, first: int, last: int, stop: int) -> list:
    """The two tiles with the highest bounds of each query head: 32 of at least 20 tokens."""
    whole = np.concatenate([keys, np.repeat(keys[-1:], -stop % 16, 0)])
    lists = [{*range(first), *range(last, stop)} for _ in range(n_kv_heads)]
    for h in range(4):
        bounds = tile_bounds_reference(q[0, h : h + 1], whole[:, h // 2], 16)[0, : -(-last // 16)]
        for tile in np.argsort(-bounds)[:2]:
            lists[h // 2] |= {*range(max(first, 16 * tile), min(last, 16 * tile + 16))}
    return [np.array(sorted(tokens)) for tokens in lists]


@pytest.mark.parametrize("method", [*METHODS[:2], QUEST], ids=name_of)
def test_a_step_is_the_papers_formula(model: Model, method: Sparse) -> None:
    spy = Spy(method)
    context, _ = read(model, spy, steps=1)
    for index, (layer, q, stop, out) in spy.calls.items():
        store = layer.store
        keys, values = read_kv(store.segments(index), store.layout, 2, 0, stop)
        lists = chosen(method, model, index, q, keys, stop)
        room, counts = np.zeros((2, stop), np.uint32), np.array([len(x) for x in lists])
        for j, tokens in enumerate(lists):
            room[j, : len(tokens)] = tokens
        scale = layer.config.attention_scale
        want = gathered_reference(q, keys, values, room, counts, scale=scale)
        np.testing.assert_allclose(out, want, atol=2e-6)
        assert spy.inner.reads[index].attended_tokens == counts.sum() < 2 * stop // 4
    assert len(context.tokens) == N + 1


@pytest.mark.parametrize("method", [*METHODS, BLOCKS, QUEST], ids=name_of)
def test_a_budget_of_the_whole_context_gives_the_bits_of_full(model: Model, method) -> None:
    _, want = read(model, Full())
    for budget in ("100%", N + 4, N):
        context, got = read(model, replace(method, budget=budget))
        np.testing.assert_array_equal(got, want)
        assert all(r.steps == 0 and r.full_steps == 4 for r in context.stats.layers)
    _, sparse = read(model, method)
    assert not np.array_equal(sparse, want)


@pytest.mark.parametrize("method", [*METHODS, BLOCKS, QUEST], ids=name_of)
def test_one_thread_gives_the_same_bits(model: Model, method: Sparse) -> None:
    if threads.max_threads() < 2:
        pytest.skip("one thread is all there is")
    before, results = on_engine(threads.n_threads), []
    for n in (1, 2):
        on_engine(threads.set_threads, n)
        results.append(read(model, method, n=2500)[1])
    on_engine(threads.set_threads, before)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("method", METHODS[1:2], ids=name_of)
@pytest.mark.parametrize("kind", ["f16", "q4_0"])
def test_an_index_does_not_depend_on_when_it_was_built(model: Model, kind: str, method) -> None:
    """Token by token, by chunks, after a cut, or afterwards from the store: the same items."""
    store = Ram(kind, kind)
    context, _ = read(model, method, n=40, steps=20, store=store)
    other = model.context(60, method, store=store)
    other.prefill(ids_of(model, 55))
    other.truncate(40)
    for token in ids_of(model, 60)[40:]:
        other.decode(token)
    for c in (context, other):
        column = c._cache.attend._index.column
        assert column.filled.tolist() == [60, 60]
    before = _items(context, 0)
    np.testing.assert_array_equal(_items(other, 0), before)
    column = context._cache.attend._index.column
    column.filled[:] = 0
    _clear(context, 0)
    seen = []
    context.index(lambda *at: seen.append(at))
    np.testing.assert_array_equal(_items(context, 0), before)
    assert seen == [(1, 2), (2, 2)]


def test_blocks_are_built_when_a_segment_is_full(model: Model) -> None:
    """Token by token, by chunks, after a cut, or afterwards from the store: the same blocks."""
    ids = ids_of(model, 1030)
    contexts = [model.context(1030, BLOCKS) for _ in range(2)]
    contexts[0].prefill(ids[:1020])
    assert not _items(contexts[0], 0, 1024).any()
    contexts[1].prefill(ids[:1028])
    contexts[1].truncate(1020)
    contexts[1].decode(1)
    contexts[1].truncate(1020)
    logits = [[c.decode(token).copy() for token in ids[1020:]] for c in contexts]
    np.testing.assert_array_equal(*logits)
    built = _items(contexts[0], 0, 1024)
    assert built.any()
    np.testing.assert_array_equal(_items(contexts[1], 0, 1024), built)
    contexts[0]._cache.attend._index.column.filled[:] = 0
    _clear(contexts[0], 0)
    contexts[0].index()
    np.testing.assert_array_equal(_items(contexts[0], 0, 1024), built)


def test_blocks_cover_what_flat_covers(model: Model) -> None:
    covered = []
    for method in (METHODS[0], BLOCKS):
        context, _ = read(model, replace(method, probe=1, budget=200), n=5000)
        covered.append([layer["covered_mass"] for layer in context.stats.as_dict()["layers"]])
    for flat, near in zip(*covered):
        assert near > 0.95 * flat


def _items(context, layer: int, n_tokens: int = 60) -> np.ndarray:
    import ctypes

    column = context._cache.attend._index.column
    n = column.item_bytes
    raw = (ctypes.c_uint8 * (2 * 1024 * n)).from_address(int(column.segments(layer)[0]))
    return np.frombuffer(raw, np.uint8).reshape(2, 1024, n)[:, :n_tokens].copy()


def _clear(context, layer: int) -> None:
    import ctypes

    column = context._cache.attend._index.column
    ctypes.memset(int(column.segments(layer)[0]), 0, 2 * 1024 * column.item_bytes)


@pytest.mark.parametrize("method", [*METHODS[1:], BLOCKS, QUEST], ids=name_of)
def test_a_pack_keeps_the_index_of_a_model_with_windows(method: Sparse, tmp_path: Path) -> None:
    """Layers with a window have no items and hold none up."""
    windowed, pack = kvarn.load(), kvarn.Disk(tmp_path / "pack")
    assert any(layer.window for layer in windowed.config.layers)
    with windowed.context(1100, method, store=pack) as context:
        context.prefill(ids_of(windowed, 1060))
    assert pack_info(tmp_path / "pack").indexes
    with windowed.context(1100, method, store=pack) as context:
        assert all((column.filled == 1024).all() for column in context.store.columns.values())
    with windowed.context(1100, replace(method, sink=1), store=pack) as context:
        context.index()
        for name, column in context.store.columns.items():
            assert (column.filled == (1024 if name == "centre" else 1060)).all()


def test_layers_that_read_all_are_indexed_for_the_next_time(model: Model, tmp_path: Path) -> None:
    for method in (METHODS[1], METHODS[2], BLOCKS):
        with model.context(1200, method) as context:
            context.prefill(ids_of(model, N))
            want = context.decode(5).copy()
        pack = kvarn.Disk(tmp_path / name_of(method))
        with model.context(1200, replace(method, dense_layers="1"), store=pack) as context:
            context.prefill(ids_of(model, N))
        with model.context(1200, method, store=pack) as context:
            np.testing.assert_array_equal(context.decode(5), want)


def test_statistics_and_probe(model: Model) -> None:
    context, _ = read(model, replace(METHODS[0], probe=2))
    layers = context.stats.as_dict()["layers"]
    assert [layer["steps"] for layer in layers] == [4, 4]
    for layer in layers:
        assert layer["stored_tokens"] == 2 * sum(range(N + 1, N + 5))
        assert layer["attention_bytes"] == layer["attended_tokens"] * 2 * 64
        assert layer["probes"] == 2
        assert 0 < layer["covered_mass"] <= 1
        assert layer["index_seconds"] > 0 < layer["attention_seconds"]
    assert "of the softmax covered" in str(context.stats)


def test_more_budget_covers_more(model: Model) -> None:
    covered = []
    for budget in (8, 80, 400):
        for method in METHODS:
            context, _ = read(model, replace(method, budget=budget, probe=1))
            covered.append(context.stats.as_dict()["layers"][1]["covered_mass"])
    exact, _, sketched = covered[0::3], covered[1::3], covered[2::3]
    assert exact[0] < exact[1] < exact[2] < 1
    for best, near in zip(exact, sketched):
        assert 0.9 * best < near < 1.02 * best


def test_budgets() -> None:
    assert Budget.parse("1%").tokens(1000) == 10
    assert Budget.parse("0.25%").tokens(1001) == 3
    assert Budget.parse(" 2048 ").tokens(10) == 2048
    assert sum(layer_weights(16, "linear")) == pytest.approx(16)
    assert layer_weights(3, "uniform") == [1, 1, 1]
    weights = layer_weights(5, "linear")
    assert weights == sorted(weights)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": "0%"}, r"expected a share \(1%\) or a count"),
        ({"budget": "lots"}, "'lots'"),
        ({"budget": 0}, "budget is 0"),
        ({"sink": -1}, "sink is -1"),
        ({"window": 0}, "newest token"),
        ({"budget_unit": "layer"}, "expected one of kv-head, query-head"),
        ({"budget_schedule": "steep"}, "expected one of uniform, linear"),
    ],
)
def test_impossible_options_are_refused_in_words(options: dict, words: str) -> None:
    for method in (TopK, Hash, Quest):
        with pytest.raises(AttendError, match=words):
            method(**options)


def test_the_methods_own_options() -> None:
    with pytest.raises(AttendError, match="48, expected 32 or 64"):
        Hash(bits=48)
    with pytest.raises(AttendError, match="index is 'tree'"):
        kvarn.TopK(index="tree")
    with pytest.raises(AttendError, match="levels is 2, expected 1 for index flat"):
        kvarn.TopK(index="flat", levels=2)
    with pytest.raises(AttendError, match="levels is 3, expected 1 or 2 for index sketch"):
        kvarn.TopK(levels=3)
    assert set(ATTENDS) == {"full", "topk", "hash", "magicpig", "quest"}
