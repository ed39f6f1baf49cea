"""Contexts that evict by scores: NumPy of each method over the keys as stored says what stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import kvarn
from kvarn.ops.reference.attention import read_kv
from kvarn.runtime.context import ContextError
from kvarn.runtime.keep import KeepError
from kvarn.runtime.keep.scored import Scored, cache
from kvarn.runtime.keep.scored.slots import ScoredSlots
from kvarn.runtime.model import Model
from kvarn.runtime.store.disk.verify import verify

F64 = NDArray[np.float64]
BUDGET, N = 130, 700
METHODS = [
    kvarn.NaCl(BUDGET),
    kvarn.NaCl(BUDGET, random="none"),
    kvarn.NaCl(BUDGET, random="uniform", heads="same", seed=5),
    kvarn.H2O(BUDGET),
    kvarn.TOVA(BUDGET),
    kvarn.SnapKV(BUDGET),
    kvarn.L2Norm(BUDGET),
    kvarn.KeepRandom(BUDGET, seed=2),
]

SOME = [METHODS[0], kvarn.H2O(BUDGET), kvarn.L2Norm(BUDGET)]


def named(keep: Scored) -> str:
    return str(keep).replace(" ", ",")


def ids_of(model: Model, n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, model.config.n_vocab, n).tolist()


class Watch:
    """Queries of each layer as attention got them, and keys held before each eviction."""

    def __init__(self) -> None:
        self.queries: dict[int, list[tuple[int, NDArray]]] = {}
        self.keys: dict[int, NDArray] = {}
        self.values: dict[int, NDArray] = {}
        self.held: dict[int, NDArray] = {}

    def query(self, layer: int, n: int) -> NDArray:
        found = np.full((n, *self.queries[layer][0][1].shape[1:]), np.nan, np.float32)
        for position, q in self.queries[layer]:
            found[position : position + len(q)] = q[: n - position]
        return found


@contextmanager
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    watch, append, evict = Watch(), ScoredSlots.append, ScoredSlots.evict
    from kvarn.runtime.keep.scored.attention import ScoredAttention

    run = ScoredAttention._pass

    def seen(self, slots, q, k, v, out) -> None:
        watch.queries.setdefault(slots.layer, []).append((self.start, q.copy()))
        run(self, slots, q, k, v, out)

    def before(self, n_tokens: int) -> None:
        held, store = self.held(n_tokens), self.store
        watch.keys[self.layer], watch.values[self.layer] = read_kv(
            store.segments(self.layer), store.layout, store.n_kv_heads, 0, held
        )
        watch.held[self.layer] = store.kept(self.layer, held).astype(int)
        evict(self, n_tokens)

    with monkeypatch.context() as patch:
        patch.setattr(ScoredAttention, "_pass", seen)
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


def expected(keep: Scored, q, keys, budget: int, layer: int, n_read: int, scale: float):
    """Which of the n held tokens stay in each KV head. q: of the tokens that may score."""
    n, heads = keys.shape[:2]
    if isinstance(keep, kvarn.L2Norm):
        norms = np.linalg.norm(keys.astype(np.float64), axis=-1)
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
    f = paid(q[-round(proxies * n) :], keys, scale)
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
    tiny: Model, keep: Scored, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt in two calls, the second a token longer than a chunk's end; then one token."""
    ids = ids_of(tiny, N)
    context = tiny.context(4096, keep=keep, store=kvarn.Ram(kind, kind))
    with watching(monkeypatch) as watch:
        for part in (ids[:100], ids[100:513], ids[513:]):
            context.prefill(part)
        for layer in range(2):
            assert context.kept(layer).tolist() == [list(range(N))] * 2
        context.decode(5)
    for layer, config in enumerate(tiny.config.layers):
        keys, scale = watch.keys[layer], config.attention_scale
        want = expected(keep, watch.query(layer, N), keys, BUDGET, layer, N, scale)
        assert context.kept(layer).tolist() == [[*row, N] for row in want]
        store = context.store
        k, v = read_kv(store.segments(layer), store.layout, 2, 0, BUDGET)
        for j, row in enumerate(want):
            np.testing.assert_array_equal(k[:, j], keys[row, j])
            np.testing.assert_array_equal(v[:, j], watch.values[layer][row, j])


def test_one_eviction_and_then_it_grows(tiny: Model) -> None:
    context = tiny.context(4096, keep=kvarn.NaCl(BUDGET))
    context.prefill(ids_of(tiny, N))
    for token in range(1, 6):
        context.decode(token)
    context.prefill(ids_of(tiny, 2000))
    context.decode(1)
    assert context.kept(0).shape == (2, BUDGET + 2006)
    figures = context.stats.as_dict()
    assert (figures["kept_tokens"], figures["evicted_tokens"]) == (BUDGET + 2006, N - BUDGET)
    assert figures["kept_in_layers"] == [BUDGET + 2006] * 2


@pytest.mark.parametrize("keep", METHODS, ids=named)
def test_later_evictions_bound_memory(
    tiny: Model, keep: Scored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every 70 tokens, generated and read: what is held then is scored by what followed."""
    every, ids = 70, ids_of(tiny, 1000, 1)
    keep = replace(keep, every=every)
    context = tiny.context(4096, keep=keep)
    with watching(monkeypatch) as watch:
        context.prefill(ids[:300])
        for token in ids[300:369]:
            context.decode(token)
        assert context.kept(0).shape == (2, BUDGET + 69)
        context.prefill(ids[369:380])  # an eviction between its first and its second token
        assert context.kept(0).shape == (2, BUDGET + 10)
        for layer, config in enumerate(tiny.config.layers):
            if isinstance(keep, kvarn.H2O):
                continue  # its sums have a history, see below
            q, held = watch.query(layer, 370), watch.held[layer]
            want = expected(
                keep, q[-every:], watch.keys[layer], BUDGET, layer, 370, config.attention_scale
            )
            kept = np.take_along_axis(held, np.array(want), 1)
            np.testing.assert_array_equal(context.kept(layer)[:, :BUDGET], kept)
        context.prefill(ids[380:])
    assert BUDGET < context.kept(0).shape[1] <= BUDGET + every
    assert context.stats.as_dict()["kept_tokens"] == context.kept(0).shape[1]


def test_sums_of_heavy_hitters_go_on(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """H2O: a survivor's sum is what it was paid before its eviction, and after."""
    keep, ids = kvarn.H2O(BUDGET, every=70), ids_of(tiny, 600, 1)
    context = tiny.context(4096, keep=keep)
    with watching(monkeypatch) as watch:
        context.prefill(ids[:530])
        for token in ids[530:]:
            context.decode(token)
        first = watch.keys[0], context.kept(0)[:, :BUDGET].astype(int)
        context.decode(1)
    scale = tiny.config.layers[0].attention_scale
    q = watch.query(0, 600)
    before = paid(q[:530], first[0], scale)
    after = paid(q[530:], watch.keys[0], scale)
    total = after.copy()
    total[:, :BUDGET] += np.take_along_axis(before, first[1], 1)
    old = BUDGET + 70 - BUDGET // 2
    for j, f in enumerate(total):
        want = top(f[:old], BUDGET - BUDGET // 2) + list(range(old, BUDGET + 70))
        assert context.kept(0)[j, :BUDGET].tolist() == watch.held[0][j][want].tolist()


@pytest.mark.parametrize("keep", SOME, ids=named)
def test_room_for_all_gives_the_bits_of_all(tiny: Model, keep: Scored) -> None:
    ids, plain = ids_of(tiny, 600), tiny.context(1024)
    for n_ctx, budget in ((1024, 1024), (2048, 600)):
        context = tiny.context(n_ctx, keep=replace(keep, budget=budget))
        np.testing.assert_array_equal(context.prefill(ids), plain.prefill(ids))
        if budget == 600:  # a prompt that fits
            np.testing.assert_array_equal(context.decode(5), plain.decode(5))
            np.testing.assert_array_equal(context.kept(0), plain.kept(0))
        plain.truncate(0)


@pytest.mark.parametrize("keep", SOME, ids=named)
@pytest.mark.parametrize("every", [0, 70])
def test_a_saved_context_goes_on_bit_for_bit(
    tiny: Model, keep: Scored, every: int, tmp_path: Path
) -> None:
    """Saved within the prompt, after it, after an eviction, and on."""
    ids, keep = ids_of(tiny, 800), replace(keep, every=every)
    disk, memory = kvarn.Disk(tmp_path / "pack"), tiny.context(1000, keep=keep)
    cuts = (0, 300, 600, 601, 602, 660, 700)
    for first, stop in pairwise(cuts):
        with tiny.context(1000, keep=keep, store=disk) as context:
            assert context.tokens == ids[:first]
            for one in (context, memory):
                if stop <= 600:
                    one.prefill(ids[first:stop])
                else:
                    for token in ids[first:stop]:
                        one.decode(token)
            np.testing.assert_array_equal(context.logits, memory.logits)
            for layer in range(2):
                np.testing.assert_array_equal(context.kept(layer), memory.kept(layer))
    assert verify(tmp_path / "pack") == []


def test_a_pack_of_other_options_is_refused(tiny: Model, tmp_path: Path) -> None:
    disk = kvarn.Disk(tmp_path / "pack")
    with tiny.context(1000, keep=kvarn.NaCl(BUDGET), store=disk) as context:
        context.prefill(ids_of(tiny, 50))
    for other in (
        kvarn.NaCl(BUDGET, random="none"), kvarn.TOVA(BUDGET), kvarn.NaCl(BUDGET, every=9),
        kvarn.NaCl(BUDGET + 1),
    ):  # fmt: skip
        with pytest.raises(kvarn.KvarnError, match="it was made to keep at most 130 tokens"):
            tiny.context(1000, keep=other, store=disk)


def with_windows(model: Model, *windows: int | None) -> Model:
    layers = zip(model.config.layers, windows)
    changed = copy(model)
    changed.config = replace(
        model.config, layers=tuple(replace(layer, window=window) for layer, window in layers)
    )
    return changed


@pytest.mark.parametrize("windows", [(24, None), (None, 700), (24, 48)])
def test_layers_with_windows_are_left_alone(tiny: Model, windows, tmp_path: Path) -> None:
    model, ids = with_windows(tiny, *windows), ids_of(tiny, 600)
    store = kvarn.Disk(tmp_path / "pack")
    with model.context(1000, keep=kvarn.NaCl(BUDGET), store=store) as context:
        plain = model.context(1000).prefill(ids)
        assert np.abs(context.prefill(ids) - plain).max() < 2e-3 * np.abs(plain).max()
        context.decode(1)
    with model.context(1000, keep=kvarn.NaCl(BUDGET), store=store) as context:
        context.decode(2)
        for layer, window in enumerate(windows):
            kept = context.kept(layer)
            assert kept.shape[1] == (min(602, window) if window else BUDGET + 2)
            if window:
                assert set(kept[0].tolist()) == set(range(602 - kept.shape[1], 602))


@pytest.mark.parametrize("keep", SOME, ids=named)
@pytest.mark.parametrize("every", [0, 70])
def test_a_draft_evicts_at_the_same_tokens(tiny: Model, keep: Scored, every: int) -> None:
    """Wrong and right guesses: what is kept is what single tokens keep."""
    ids, keep = ids_of(tiny, 300), replace(keep, every=every)
    drafted, single = (tiny.context(1000, keep=keep) for _ in range(2))
    for context in (drafted, single):
        context.prefill(ids[:200])
    at, rng = 200, np.random.default_rng(0)
    while at < 290:
        room = min(drafted.draft_room, 6)
        assert room >= 0
        draft = ids[at + 1 : at + 1 + room]
        if draft and rng.random() < 0.5:
            draft[rng.integers(len(draft))] = 0
        drafted.decode(ids[at], draft)
        at += 1
        while drafted.reads_ahead(ids[at]):
            drafted.decode(ids[at])
            at += 1
    for token in ids[200:at]:
        single.decode(token)
    if every:
        assert drafted.draft_room < BUDGET + every
    for layer in range(2):
        a, b = (np.sort(context.kept(layer)) for context in (drafted, single))
        assert a.shape == b.shape
        assert np.mean(a == b) > 0.95  # rounding may decide between two tokens


def test_cuts_end_where_queries_are_gone(tiny: Model) -> None:
    ids = ids_of(tiny, 2000)
    for keep, least in (
        (kvarn.TOVA(BUDGET), 1025), (kvarn.H2O(BUDGET), 1536), (kvarn.L2Norm(BUDGET), 1),
    ):  # fmt: skip
        context = tiny.context(4096, keep=keep)
        context.prefill(ids)
        can = [n for n in range(1, 2000) if context.can_truncate(n)]
        assert can == list(range(least, 2000))
        if least > 1:
            words = f"cut a context of 2000 tokens to 9: queries that keep {keep.name} needs"
            with pytest.raises(ContextError, match=words):
                context.truncate(9)
        context.truncate(1600)
        context.prefill(ids[1600:])
        context.decode(1)
        whole = tiny.context(4096, keep=keep)
        whole.prefill(ids)
        whole.decode(1)
        assert np.mean(context.kept(0) == whole.kept(0)) > 0.95  # read in other pieces
        assert [n for n in range(2002) if context.can_truncate(n)] == [0, 2001]
        context.truncate(0)
        context.prefill(ids[:300])
        assert context.kept(1).tolist() == [list(range(300))] * 2


def test_memory_is_told_and_given_back(tiny: Model) -> None:
    context = tiny.context(8192, keep=kvarn.NaCl("10%"))
    (line,) = context.notices
    assert "keep nacl holds a prompt whole until the first token is generated: " in line
    assert " of queries for 8,192 tokens, then " in line
    context.prefill(ids_of(tiny, 6000))
    whole = context.n_bytes
    context.decode(1)
    figures = context.stats.as_dict()
    assert context.n_bytes == whole // 6
    assert figures["most_kv_bytes"] == whole
    assert figures["most_query_bytes"] > 0
    assert (figures["kept_tokens"], figures["evicted_tokens"]) == (821, 5180)
    assert "kept 821 of 6001 tokens, evicted 5180; held at most " in str(context.stats)
    assert not context._cache._queries.n_bytes
    context.close()
    assert "kept 821 of 6001" in str(context.stats)


def test_a_prompt_that_memory_cannot_hold_is_refused(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = tiny.context(4096, keep=kvarn.TOVA(BUDGET))
    context.prefill(ids_of(tiny, 600))
    monkeypatch.setattr(cache, "available_bytes", lambda: 1000)
    with pytest.raises(kvarn.KvarnError, match=r"whole needs another .* and 1000 B of"):
        context.prefill(ids_of(tiny, 600))
    monkeypatch.undo()
    context.prefill(ids_of(tiny, 600))
    context.decode(1)
    assert context.kept(0).shape == (2, BUDGET + 1)


def test_tokens_are_drawn_by_the_softmax_of_their_scores() -> None:
    """NaCl: of 9 tokens the best stays, then two are drawn without return; over 5,000 seeds."""
    scores = np.linspace(1.5, 0, 9, dtype=np.float32)
    for random in ("scores", "uniform"):
        weights = np.exp(scores[1:].astype(float)) if random == "scores" else np.ones(8)
        keep, counts = kvarn.NaCl(3, random=random), np.zeros((9, 9))
        assert keep.shares(9, 3) == (0, 1, 2)
        for seed in range(5000):
            best, one, two = keep.choose(scores[None], 3, (seed, 9))[0].tolist()
            assert best == 0
            counts[one, two] += 1
        p = weights / weights.sum()
        pairs = np.outer(p, p) / (1 - p)[:, None]  # one, then the other
        wanted = 5000 * (pairs + pairs.T)[np.triu_indices(8, 1)]
        found = counts[1:, 1:][np.triu_indices(8, 1)]
        assert found.sum() == 5000
        chi = float(((found - wanted) ** 2 / wanted).sum())
        assert chi < 55.5, (random, chi)  # chi-square, 27 degrees of freedom: p = 0.001


def test_heads_and_layers_draw_for_themselves() -> None:
    scores = np.zeros((2, 400), np.float32)
    own, same = kvarn.NaCl(80), kvarn.NaCl(80, heads="same")
    a, b = own.choose(scores, 80, (0, 400))
    assert a.tolist() != b.tolist()
    assert own.choose(scores, 80, (1, 400))[0].tolist() != a.tolist()
    a, b = same.choose(scores, 80, (0, 400))
    assert a.tolist() == b.tolist()
    for keep in (kvarn.NaCl(80), kvarn.KeepRandom(80)):
        np.testing.assert_array_equal(
            keep.choose(scores, 80, (0, 400)), keep.choose(scores, 80, (0, 400))
        )


@pytest.mark.parametrize(
    ("percent", "proxies", "newest", "best"),
    [(10, 400, 100, 200), (20, 2000, 200, 600), (30, 2150, 150, 1050), (15, 1200, 150, 400),
     (25, 2075, 175, 825), (5, 400, 50, 100), (60, 2150, 300, 2100)],
)  # fmt: skip
def test_shares_are_those_of_table_4(percent: int, proxies: int, newest: int, best: int) -> None:
    n, keep, budget = 10_000, kvarn.NaCl(), 100 * percent
    assert keep.n_proxies(n, budget) == proxies
    assert keep.shares(n, budget) == (newest, best, budget - newest - best)


def test_wrong_options_are_one_line() -> None:
    for make, words in (
        (lambda: kvarn.SnapKV(64), "64 tokens leaves nothing to evict beside 64 protected"),
        (lambda: kvarn.SnapKV(100, every=20), "every is 20, fewer than the 64 tokens"),
        (lambda: kvarn.SnapKV(100, pooling=4), "pooling over 4"),
        (lambda: kvarn.H2O(100, every=-1), "h2o: every is -1"),
        (lambda: kvarn.NaCl(100, random="some"), "random is 'some', expected one of scores, un"),
        (lambda: kvarn.NaCl(100, heads="all"), "heads is 'all', expected one of own, same"),
        (lambda: kvarn.NaCl(100, seed=-1), "seed is -1"),
        (lambda: kvarn.KeepRandom(100, seed=-1), "seed is -1"),
    ):
        with pytest.raises(KeepError, match=words) as caught:
            make()
        assert "\n" not in str(caught.value)
