"""Sparse methods: what they read is what the papers' formulas choose, and the rest is `full`."""

from dataclasses import replace

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.ops.reference.attention import gathered_reference, read_kv
from kvarn.ops.reference.select import (
    largest_reference,
    nearest_reference,
    network_reference,
    pack_bits,
    reranked_reference,
)
from kvarn.runtime.attend import (
    Attend,
    Full,
    Hash,
    Sparse,
    TopK,
)
from kvarn.runtime.attend.encoders import SimHash
from kvarn.runtime.attend.sparse import SEED
from kvarn.runtime.engine import on_engine
from kvarn.runtime.model import Model

from .. import reading
from .spy import Spy

COMMON = {"budget": 40, "sink": 4, "window": 16}
PLAIN_HASH = Hash(**COMMON, rerank=1)
METHODS = [TopK(index="flat", **COMMON), PLAIN_HASH, TopK(index="sketch", **COMMON)]
RERANKED = Hash(**COMMON, rerank=3)
MEANS = TopK(tail="means", **COMMON)


def name_of(method: Sparse) -> str:
    tail = " and means" if getattr(method, "tail", "none") != "none" else ""
    rerank = " reranked" if getattr(method, "rerank", 1) > 1 else ""
    return getattr(method, "index", method.name) + tail + rerank


N = 1100
"""Tokens of a prompt: sketches begin with the first full segment."""


def read(model: Model, attend: Attend, n: int = N, steps: int = 4, **options) -> tuple:
    return reading.read(model, attend, n, steps, **options)


def chosen(method: Sparse, model: Model, layer: int, q, keys, stop: int) -> list[np.ndarray]:
    """The paper's formula in NumPy: the tokens each KV head attends."""
    n_kv_heads, k = keys.shape[1], 40 // 2
    first, last = method.sink, stop - method.window
    if isinstance(method, TopK):
        scores = np.stack([keys[:, h // 2] @ q[0, h] for h in range(4)])
        return largest_reference(scores, n_kv_heads, (first, last, stop), k, SEED)
    network = SimHash(32, SEED).networks(model.config, layer).queries[0]

    def signatures(x) -> np.ndarray:
        return pack_bits(network_reference(x, network.weights, network.widths))

    stored = np.stack([signatures(keys[:, j]) for j in range(n_kv_heads)])
    asking = signatures(q[0]).reshape(n_kv_heads, -1)
    if method.rerank > 1:
        scores = np.stack([keys[:, h // 2] @ q[0, h] for h in range(4)])
        wanted = k, method.rerank * k, SEED
        return reranked_reference(asking, stored, 32, scores, (first, last, stop), wanted)
    return nearest_reference(asking, stored, 32, (first, last, stop), k, SEED)


@pytest.mark.parametrize("method", [*METHODS[:2], RERANKED], ids=name_of)
def test_a_step_is_the_papers_formula(model: Model, method: Sparse) -> None:
    check_a_step(model, method, chosen)


def check_a_step(model: Model, method: Sparse, chosen) -> None:
    """chosen: a method's formula, as `chosen` has it."""
    spy = Spy(method)
    context, _ = read(model, spy, steps=1)
    for index, (layer, q, stop, out) in spy.calls.items():
        store = layer.store
        keys, values = read_kv(store.segments(index), store.layout, 2, 0, stop)
        lists = chosen(method, model, index, q, keys, stop)
        room, counts = np.zeros((2, stop), np.uint32), np.array([len(x) for x in lists])
        for j, tokens in enumerate(lists):
            room[j, : len(tokens)] = tokens
        want = gathered_reference(q, keys, values, room, counts, softmax=layer.softmax)
        np.testing.assert_allclose(out, want, atol=2e-6)
        assert spy.inner.reads[index].attended_tokens == counts.sum() < 2 * stop // 4
    assert len(context.tokens) == N + 1


@pytest.mark.parametrize("method", [*METHODS, RERANKED, MEANS], ids=name_of)
def test_a_budget_of_the_whole_context_gives_the_bits_of_full(model: Model, method) -> None:
    _, want = read(model, Full())
    for budget in ("100%", N + 4, N):
        context, got = read(model, replace(method, budget=budget))
        np.testing.assert_array_equal(got, want)
        assert all(r.steps == 0 and r.full_steps == 4 for r in context.stats.layers)
    _, sparse = read(model, method)
    assert not np.array_equal(sparse, want)


@pytest.mark.parametrize("method", [*METHODS, MEANS], ids=name_of)
def test_one_thread_gives_the_same_bits(model: Model, method: Sparse) -> None:
    if threads.max_threads() < 2:
        pytest.skip("one thread is all there is")
    before, results = on_engine(threads.n_threads), []
    for n in (1, 2):
        on_engine(threads.set_threads, n)
        results.append(read(model, method, n=2500)[1])
    on_engine(threads.set_threads, before)
    np.testing.assert_array_equal(*results)


def test_sketches_cover_what_flat_covers(model: Model) -> None:
    covered = []
    for method in (METHODS[0], METHODS[2]):
        context, _ = read(model, replace(method, probe=1, budget=200), n=5000)
        covered.append([layer["covered_mass"] for layer in context.stats.as_dict()["layers"]])
    for flat, near in zip(*covered):
        assert near > 0.95 * flat


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
