"""The tails of `topk` at work in a model: formulas in NumPy over what is stored."""

from dataclasses import replace

import numpy as np
import pytest

import kvarn
from kvarn.jit import threads
from kvarn.ops.reference.attention import read_kv
from kvarn.runtime.attend import AttendError, Full, Hash, Sparse, TopK
from kvarn.runtime.engine import on_engine
from kvarn.runtime.packs.pack import pack_info
from kvarn.runtime.store import Ram

from .. import reading
from ..reading import ids_of
from .spy import Spy

COMMON = {"budget": 40, "sink": 4, "window": 16}
PLAIN = TopK(**COMMON)
MEANS = TopK(tail="means", **COMMON)
HASHED = Hash(tail="means", rerank=2, **COMMON)


def read(model, attend, n: int = 2500, steps: int = 3, **options):
    return reading.read(model, attend, n, steps, **options)


class ChoiceSpy(Spy):
    """Keeps what each layer's last step chose, too."""

    def __init__(self, method: Sparse) -> None:
        super().__init__(method)
        self.chosen = {}

    def __call__(self, layer, q, start, out) -> None:
        super().__call__(layer, q, start, out)
        chosen = self.inner._chosen
        kept = chosen.lists, chosen.counts, chosen.log_weights
        self.chosen[layer.index] = [x.copy() for x in kept]


def _similar(keys: np.ndarray) -> np.ndarray:
    """The rows of a segment's keys (1024, E) in blocks (32, 32): halved five times at the median
    along the widest direction, found by two steps of the power method."""
    parts = [np.arange(len(keys))]
    while len(parts[0]) > 32:
        halves = []
        for part in parts:
            x = keys[part] - keys[part].mean(0)
            u = x[np.argmax((x**2).sum(1))]
            for _ in range(2):
                u = x.T @ (x @ u)
                u /= np.linalg.norm(u)
            order = np.argsort(-(x @ u), kind="stable")
            halves += [part[order[: len(part) // 2]], part[order[len(part) // 2 :]]]
        parts = halves
    return np.stack(parts)


@pytest.mark.parametrize("store", [Ram("f16", "f16"), Ram("q8_0", "q8_0")], ids=lambda s: s.k)
@pytest.mark.parametrize("method", [MEANS, HASHED], ids=["topk", "hash"])
def test_a_step_with_means_is_the_formula(model, store, method: Sparse) -> None:
    """Softmax over the listed tokens, and of each block a token at its mean for each one left."""
    spy = ChoiceSpy(method)
    read(model, spy, store=store)
    for index, (layer, q, stop, out) in spy.calls.items():
        lists, counts, _ = spy.chosen[index]
        keys, values = read_kv(layer.store.segments(index), layer.store.layout, 2, 0, stop)
        means, mean_values, left = (np.zeros((2, 64, *s)) for s in ((32,), (32,), ()))
        for j in range(2):
            blocks = [_similar(keys[at : at + 1024, j].astype(float)) + at for at in (0, 1024)]
            rows = np.concatenate(blocks)
            means[j], mean_values[j] = keys[rows, j].mean(1), values[rows, j].mean(1)
            left[j] = (~np.isin(rows, lists[j, : counts[j]])).sum(1)
        assert 0 < (left < 32).sum() < left.size
        for h in range(4):
            j = h // 2
            listed = lists[j, : counts[j]]
            s = np.r_[keys[listed, j] @ q[0, h], means[j] @ q[0, h]] * layer.config.attention_scale
            p = np.exp(s - s.max()) * np.r_[np.ones(len(listed)), left[j]]
            want = p @ np.r_[values[listed, j], mean_values[j]] / p.sum()
            # An element of a mean is off by at most a 254th of the largest of 32, in K and in V.
            assert np.abs(out[0, h] - want).max() < 1e-2 * np.abs(want).max()
            alone = np.exp(s[: len(listed)]) @ values[listed, j] / np.exp(s[: len(listed)]).sum()
            assert np.abs(alone - want).max() > 0.2 * np.abs(want).max()


def test_a_budget_of_the_whole_context_gives_the_bits_of_full(model, method=MEANS) -> None:
    _, want = read(model, Full(), n=1100)
    _, got = read(model, replace(method, budget="100%"), n=1100)
    np.testing.assert_array_equal(got, want)


def test_one_thread_gives_the_same_bits(model, method=MEANS) -> None:
    if threads.max_threads() < 2:
        pytest.skip("one thread is all there is")
    before, results = on_engine(threads.n_threads), []
    for n in (1, 2):
        on_engine(threads.set_threads, n)
        results.append(read(model, method)[1])
    on_engine(threads.set_threads, before)
    np.testing.assert_array_equal(*results)


def test_means_lower_the_error_and_are_counted(model) -> None:
    layers = []
    for method in (PLAIN, MEANS):
        context, _ = read(model, replace(method, probe=1))
        layers.append(context.stats.as_dict()["layers"])
    for plain, means in zip(*layers):
        assert means["output_error"] < 0.7 * plain["output_error"]
        # 2 full segments of 2 KV heads: 32 means of K and V with 2 scales; a byte a listed token.
        extra = 3 * 2 * 2 * 32 * (32 + 32 + 4) + means["attended_tokens"]
        assert means["index_bytes"] - plain["index_bytes"] == pytest.approx(extra, rel=0.03)


def _column(column) -> np.ndarray:
    import ctypes

    n = 2 * 1024 * column.item_bytes
    raw = (ctypes.c_uint8 * n).from_address(int(column.segments(0)[0]))
    return np.frombuffer(raw, np.uint8).copy()


@pytest.mark.parametrize("method", [MEANS, HASHED], ids=["topk", "hash"])
def test_means_do_not_depend_on_when_they_were_built(model, method: Sparse) -> None:
    """Token by token, by chunks, after a cut, or afterwards beside an index that was there."""
    ids = ids_of(model, 1030)
    contexts = [model.context(1030, method) for _ in range(2)]
    contexts[0].prefill(ids[:1020])
    contexts[1].prefill(ids[:1028])
    contexts[1].truncate(1020)
    logits = [[c.decode(token).copy() for token in ids[1020:]] for c in contexts]
    np.testing.assert_array_equal(*logits)
    means = contexts[0]._cache.attend._index.column
    built = _column(means)
    assert built.any()
    np.testing.assert_array_equal(_column(contexts[1]._cache.attend._index.column), built)
    means.filled[:] = 0
    contexts[0].index()
    assert (means.filled == 1030).all()
    np.testing.assert_array_equal(_column(means), built)


def test_a_pack_with_sketches_gets_means_when_they_are_wanted(tmp_path) -> None:
    model, pack = kvarn.load(), kvarn.Disk(tmp_path / "pack")
    assert any(layer.window for layer in model.config.kv_layers)
    ids = ids_of(model, 1063)
    with model.context(1100, PLAIN, store=pack) as context:
        context.prefill(ids[:1060])
    steps = []
    for _ in range(2):
        with model.context(1100, MEANS, store=pack) as context:
            steps.append([context.decode(token).copy() for token in ids[1060:]])
            context.truncate(1060)
    with model.context(1100, MEANS) as context:
        context.prefill(ids[:1060])
        steps.append([context.decode(token).copy() for token in ids[1060:]])
    for step in steps[1:]:
        np.testing.assert_allclose(step, steps[0], atol=1e-5)
    kept = pack_info(tmp_path / "pack").indexes
    assert [name.partition("-")[0] for name in kept] == ["frame", "means", "sketch", "sketch"]


def test_what_chooses_says_what_it_lacks_beside_means_too(model) -> None:
    method = Hash(**COMMON)
    with model.context(1100, method) as alone, model.context(1100, HASHED) as both:
        assert both._cache.attend.notices == alone._cache.attend.notices != ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tail": "means", "index": "flat"}, "tail means needs index sketch, found index flat"),
        ({"tail": "long"}, "tail is 'long', expected one of none, means"),
    ],
)
def test_impossible_tails_are_refused_in_words(options: dict, words: str) -> None:
    with pytest.raises(AttendError, match=words):
        TopK(**options)
