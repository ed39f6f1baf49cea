"""Contexts that evict by scores: NumPy of each method over the keys as stored says what stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import kvarn
from kvarn.ops.arrays import F64
from kvarn.ops.reference.attention import read_kv
from kvarn.runtime.keep.scored import ScoredKeep, ScoredSlots
from kvarn.runtime.keep.scored.queries import Queries
from kvarn.runtime.model import Model

from .reading import ids_of

BUDGET, N = 130, 700
METHODS = [
    kvarn.NaCl(BUDGET),
    kvarn.NaCl(BUDGET, random="none"),
    kvarn.NaCl(BUDGET, random="uniform", heads="same", seed=5),
    kvarn.NaCl(BUDGET, proxies="10%"),
    kvarn.NaCl(BUDGET, proxies="13"),
    kvarn.H2O(BUDGET),
    kvarn.TOVA(BUDGET),
    kvarn.SnapKV(BUDGET),
    kvarn.L2Norm(BUDGET),
    kvarn.L2Norm(BUDGET, sinks=4, recent=10),
    kvarn.KeepRandom(BUDGET, seed=2),
]


def named(keep: ScoredKeep) -> str:
    return str(keep).replace(" ", ",")


class Watch:
    """Queries of each layer as attention got them, and keys held before each eviction."""

    def __init__(self) -> None:
        self.queries: dict[int, list[tuple[int, NDArray]]] = {}
        self.keys: dict[int, NDArray] = {}
        self.values: dict[int, NDArray] = {}
        self.held: dict[int, NDArray] = {}
        self.centres: dict[int, NDArray] = {}

    def query(self, layer: int, n: int) -> NDArray:
        found = np.full((n, *self.queries[layer][0][1].shape[1:]), np.nan, np.float32)
        for position, q in self.queries[layer]:
            found[position : position + len(q)] = q[: n - position]
        return found


@contextmanager
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    watch, append, evict = Watch(), ScoredSlots.append, ScoredSlots.evict
    read = ScoredSlots.read

    def seen(self, q, k, v, out, *, position: int, prompt: bool) -> None:
        watch.queries.setdefault(self.layer, []).append((position, q.copy()))
        read(self, q, k, v, out, position=position, prompt=prompt)

    def before(self, n_tokens: int) -> None:
        held, store = self.n_held(n_tokens), self.store
        watch.keys[self.layer], watch.values[self.layer] = read_kv(
            store.segments(self.layer), store.layout, store.n_kv_heads, 0, held
        )
        if store.centre is not None:
            watch.centres[self.layer] = store.centre[self.layer]
        watch.held[self.layer] = store.kept_positions(self.layer, held).astype(int)
        evict(self, n_tokens)

    with monkeypatch.context() as patch:
        patch.setattr(ScoredSlots, "read", seen)
        patch.setattr(ScoredSlots, "evict", before)
        yield watch
    assert append is ScoredSlots.append


def paid(q: NDArray, keys: NDArray, scale: float) -> F64:
    """F (J, n) of the queries of the last len(q) of n tokens, which are kept as float16."""
    n, m, group = len(keys), len(q), q.shape[1] // keys.shape[1]
    repeated = np.repeat(keys.astype(np.float64), group, 1)
    hidden = np.arange(n)[None] > np.arange(n - m, n)[:, None]
    scaled = q * np.float32(scale)
    rounded = scaled.astype(np.float16)
    exact, s = (
        np.where(hidden[:, None], -np.inf, np.einsum("the,nhe->thn", x, repeated))
        for x in (scaled.astype(np.float64), rounded.astype(np.float64))
    )
    p = np.exp(s - np.log(np.exp(exact).sum(-1, keepdims=True)))
    return p.sum(0).reshape(keys.shape[1], group, n).sum(1)


def top(x: F64, k: int) -> list[int]:
    return sorted(sorted(range(len(x)), key=lambda i: (-x[i], i))[:k])


def table_4(share: float) -> tuple[float, float, float]:
    """Shares of the prompt: proxies, newest, best; in per cent, as in the paper."""
    share = min(max(share, 0.1), 0.3)
    rows = [(10, 4, 1, 2), (20, 20, 2, 6), (30, 21.5, 1.5, 10.5)]
    low = rows[0] if share <= 0.2 else rows[1]
    high = rows[1] if share <= 0.2 else rows[2]
    w = (100 * share - low[0]) / 10
    proxies, newest, best = ((1 - w) * a + w * b for a, b in zip(low[1:], high[1:]))
    return proxies / 100, newest / 100 / share, best / 100 / share


def expected(keep: ScoredKeep, q, keys, budget: int, layer: int, n_read: int, scale: float):
    """Which of the n held tokens stay in each KV head. q: of the tokens that may score."""
    n, heads = keys.shape[:2]
    if isinstance(keep, kvarn.L2Norm):
        norms = np.linalg.norm(keys.astype(np.float64), axis=-1)
        norms[: keep.sinks] = norms[len(norms) - keep.recent :] = -1
        return [top(-norms[:, j], budget) for j in range(heads)]
    if isinstance(keep, kvarn.KeepRandom):
        rngs = [np.random.default_rng((keep.seed, layer, n_read, j)) for j in range(heads)]
        return [sorted(rng.permutation(n)[:budget].tolist()) for rng in rngs]
    if isinstance(keep, kvarn.TOVA):
        return [top(f, budget) for f in paid(q[-1:], keys, scale)]
    if isinstance(keep, kvarn.H2O):
        old = n - budget // 2
        return [
            top(f[:old], budget - budget // 2) + list(range(old, n)) for f in paid(q, keys, scale)
        ]
    if isinstance(keep, kvarn.SnapKV):
        old, found = n - 64, []
        for f in paid(q[-64:], keys, scale):
            pooled = np.array([f[max(0, i - 3) : min(i + 4, old)].max() for i in range(old)])
            found.append(top(pooled, budget - 64) + list(range(old, n)))
        return found
    proxies, newest, best = table_4(budget / n)
    scoring = {"table": round(proxies * n), "10%": round(n / 10), "13": 13}[str(keep.proxies)]
    f = paid(q[-scoring:], keys, scale)
    if keep.heads == "same":
        f = np.tile(f.sum(0), (heads, 1))
    found = []
    for j, row in enumerate(f):
        old = n - round(newest * budget)
        high = round(best * budget)
        n_drawn = budget - (n - old) - high
        if keep.random == "none":
            high, n_drawn = high + n_drawn, 0
        kept = top(row[:old], high)
        left = [i for i in range(old) if i not in set(kept)]
        head = 0 if keep.heads == "same" else j
        noise = np.random.default_rng((keep.seed, layer, n_read, head)).gumbel(size=len(left))
        lots = noise + (row[left] if keep.random == "scores" else 0)
        found.append(sorted(kept + [left[i] for i in top(lots, n_drawn)]) + list(range(old, n)))
    return found


@pytest.mark.parametrize("kind", ["f16", "q4_0"])
@pytest.mark.parametrize("keep", METHODS, ids=named)
def test_what_stays_is_what_numpy_keeps(
    tiny: Model, keep: ScoredKeep, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt in two calls, the second a token longer than a chunk's end; then one token."""
    ids = ids_of(tiny, N)
    context = tiny.context(4096, keep=keep, store=kvarn.Ram(kind, kind))
    with watching(monkeypatch) as watch:
        for part in (ids[:100], ids[100:513], ids[513:]):
            context.prefill(part)
        for layer in range(2):
            assert context.kept_positions(layer).tolist() == [list(range(N))] * 2
        context.decode(5)
    for layer, config in enumerate(tiny.config.kv_layers):
        keys, scale = watch.keys[layer], config.attention_scale
        here = keys + watch.centres.get(layer, 0) if isinstance(keep, kvarn.L2Norm) else keys
        want = expected(keep, watch.query(layer, N), here, BUDGET, layer, N, scale)
        assert context.kept_positions(layer).tolist() == [[*row, N] for row in want]
        store = context.store
        k, v = read_kv(store.segments(layer), store.layout, 2, 0, BUDGET)
        for j, row in enumerate(want):
            np.testing.assert_array_equal(k[:, j], keys[row, j])
            np.testing.assert_array_equal(v[:, j], watch.values[layer][row, j])


@pytest.mark.parametrize("keep", METHODS, ids=named)
def test_later_evictions_bound_memory(
    tiny: Model, keep: ScoredKeep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every 70 tokens, generated and read: what is held then is scored by what followed."""
    every, ids = 70, ids_of(tiny, 1000, 1)
    keep = replace(keep, every=every)
    context = tiny.context(4096, keep=keep)
    with watching(monkeypatch) as watch:
        context.prefill(ids[:300])
        for token in ids[300:369]:
            context.decode(token)
        assert context.kept_positions(0).shape == (2, BUDGET + 69)
        context.prefill(ids[369:380])  # an eviction between its first and its second token
        assert context.kept_positions(0).shape == (2, BUDGET + 10)
        for layer, config in enumerate(tiny.config.kv_layers):
            if isinstance(keep, kvarn.H2O):
                continue  # its sums have a history, see below
            q, held = watch.query(layer, 370), watch.held[layer]
            want = expected(
                keep, q[-every:], watch.keys[layer], BUDGET, layer, 370, config.attention_scale
            )
            kept = np.take_along_axis(held, np.array(want), 1)
            np.testing.assert_array_equal(context.kept_positions(layer)[:, :BUDGET], kept)
        context.prefill(ids[380:])
    assert BUDGET < context.kept_positions(0).shape[1] <= BUDGET + every
    assert context.stats.as_dict()["kept_tokens"] == context.kept_positions(0).shape[1]


def test_no_tokens_are_no_piece() -> None:
    queries, tokens = Queries([3], 2, 8), np.ones((600, 2, 8), np.float32)
    queries.put(3, 100, tokens, None)
    pieces = [(piece.position, len(piece.queries)) for piece in queries.pieces(3, 500, 700)]
    assert pieces == [(500, 12), (512, 188)]
    assert not list(queries.pieces(3, 700, 700)) and not list(queries.pieces(3, 512, 512))


def test_sums_of_heavy_hitters_go_on(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """H2O: a survivor's sum is what it was paid before its eviction, and after."""
    keep, ids = kvarn.H2O(BUDGET, every=70), ids_of(tiny, 600, 1)
    context = tiny.context(4096, keep=keep)
    with watching(monkeypatch) as watch:
        context.prefill(ids[:530])
        for token in ids[530:]:
            context.decode(token)
        first = watch.keys[0], context.kept_positions(0)[:, :BUDGET].astype(int)
        context.decode(1)
    scale = tiny.config.kv_layers[0].attention_scale
    q = watch.query(0, 600)
    before = paid(q[:530], first[0], scale)
    after = paid(q[530:], watch.keys[0], scale)
    total = after.copy()
    total[:, :BUDGET] += np.take_along_axis(before, first[1], 1)
    old = BUDGET + 70 - BUDGET // 2
    for j, f in enumerate(total):
        want = top(f[:old], BUDGET - BUDGET // 2) + list(range(old, BUDGET + 70))
        assert context.kept_positions(0)[j, :BUDGET].tolist() == watch.held[0][j][want].tolist()
