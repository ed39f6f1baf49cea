"""Draws from hash tables against MagicPIG's formula in NumPy, with the same planes."""

import numpy as np
import pytest

from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.select import draw_reference
from kvarn.ops.select import (
    DrawScratch,
    Hashing,
    Range,
    Tables,
    TableStore,
    draw,
    hash_keys,
    sort_runs,
    table_planes,
)
from kvarn.ops.select.tables.planes import RUN

from ...thread_counts import with_threads

NOT_DRAWN = -1e30


class Drawn:
    """The tables of a cache, and what is drawn from them."""

    def __init__(self, cache, tables: Tables, n_heads: int, seed: int = 5) -> None:
        self.cache, self.tables = cache, tables
        n, j, head_dim = len(cache.segments), cache.n_kv_heads, cache.layout.head_dim
        self.keys = cache.stored()[0]
        self.centre = self.keys.mean(0)
        self.column = np.zeros((n, j, SEGMENT * tables.item_bytes), np.uint8)
        self.items = self.column.ctypes.data + self.column[0].nbytes * np.arange(n)
        self.scratch = DrawScratch(n_heads, j, cache.n_tokens, tables, cache.layout)
        self.lists = np.zeros((j, cache.n_tokens), np.uint32)
        self.counts = np.zeros(j, np.int64)
        self.log_weights = np.full((n_heads, cache.n_tokens), np.nan, np.float32)
        self.redraw(table_planes(head_dim, tables, (seed,)))

    def redraw(self, planes) -> None:
        self.hashing = Hashing(self.tables, planes, self.centre)

    def add(self, first: int, last: int) -> None:
        cache = self.cache
        hash_keys(self.hashing, cache.segments, cache.layout, self.items, first, last)
        sort_runs(self.tables, cache.n_kv_heads, self.items, first // RUN, last // RUN)

    def draw(self, q, among: Range, indexed: int | None = None) -> int:
        indexed = self.cache.n_tokens if indexed is None else indexed
        stored = TableStore(self.cache.segments, self.items, indexed // RUN)
        return draw(
            q, self.hashing, stored, among, self.lists, self.counts, self.log_weights,
            scratch=self.scratch,
        )  # fmt: skip

    def expected(self, q, j: int, among: Range) -> tuple[np.ndarray, np.ndarray]:
        """Of KV head j: whether each query draws each token, and its log weights, in float64."""
        t, group = self.tables, q.shape[1] // self.cache.n_kv_heads
        planes = self.hashing.planes.swapaxes(1, 2).reshape(-1, q.shape[2])[: t.bits * t.number]
        keys = (self.keys[:, j] - self.centre[j]).astype(np.float64)
        drawn, weights = draw_reference(
            q[0, j * group : (j + 1) * group].astype(np.float64), keys, planes, t.bits, t.number
        )
        outside = np.ones(self.cache.n_tokens, bool)
        outside[among.first : among.last] = False
        return drawn & ~outside | outside, np.where(outside, 0, np.where(drawn, weights, NOT_DRAWN))


@pytest.mark.parametrize(
    ("bits", "count", "head_dim", "kind", "heads", "n_kv_heads"),
    [
        (10, 150, 64, "f16", 8, 2),
        (8, 75, 128, "q8_0", 3, 3),
        (4, 2, 80, "q4_0", 2, 1),
        (16, 100, 32, "f16", 1, 1),
        (12, 70, 256, "f16", 4, 1),
        (10, 40, 576, "q8_0", 4, 1),
    ],
)
def test_tokens_and_weights_are_the_formulas(
    make_cache, queries, bits: int, count: int, head_dim: int, kind: str, heads: int, n_kv_heads
) -> None:
    """Of sorted segments and the open one, with keys near to the queries and far from them."""
    n_tokens = RUN + 1500
    cache = make_cache(head_dim, kind, kind, n_kv_heads, n_tokens)
    tables, q = Tables(bits, count), queries(1, heads, head_dim)
    drawn = Drawn(cache, tables, heads)
    # Queries like some of the keys, or 16 bits would hardly draw any.
    q += 2 * np.repeat(drawn.keys[100] - drawn.centre, heads // n_kv_heads, 0)
    for first, last in ((0, 1000), (1000, 1001), (1001, RUN + 1), (RUN + 1, n_tokens)):
        drawn.add(first, last)
    among = Range(4, n_tokens - 64, n_tokens)
    n_bytes = drawn.draw(q, among)
    n_drawn = 0
    for j in range(n_kv_heads):
        listed = drawn.lists[j, : drawn.counts[j]]
        want, weights = drawn.expected(q, j, among)
        np.testing.assert_array_equal(listed, np.flatnonzero(want.any(0)))
        group = heads // n_kv_heads
        got = drawn.log_weights[j * group : (j + 1) * group, : len(listed)]
        np.testing.assert_allclose(got, weights[:, listed], rtol=1e-5, atol=1e-5)
        n_drawn += want.sum()
    assert n_drawn > heads * (4 + 64)
    assert 0 < n_bytes < heads * tables.number * (2 * n_tokens + 4 + 128)


def test_tables_do_not_depend_on_when_keys_were_hashed(make_cache) -> None:
    """A few at a time, or at once: the same bytes."""
    n = RUN + 30
    cache = make_cache(64, "f16", "f16", 2, n)
    at_once, in_parts = (Drawn(cache, Tables(9, 20), 4) for _ in range(2))
    at_once.add(0, n)
    for first, last in ((0, 3), (3, 1030), (1030, RUN - 1), (RUN - 1, RUN), (RUN, n)):
        in_parts.add(first, last)
    np.testing.assert_array_equal(at_once.column, in_parts.column)


def test_one_thread_draws_the_same(make_cache, queries) -> None:
    cache, q = make_cache(64, "f16", "f16", 3, RUN + 100), queries(1, 6, 64)
    results = []
    for _ in with_threads(1, 2):
        drawn = Drawn(cache, Tables(6, 40), 6)
        drawn.add(0, RUN + 100)
        drawn.draw(q, Range(0, RUN + 99, RUN + 100))
        results.append((drawn.lists, drawn.counts, drawn.log_weights))
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


def test_a_key_at_the_centre_has_a_weight(make_cache, queries) -> None:
    """Its direction is unknown: p is 1/2, where its codes are those of no bit set."""
    cache, tables = make_cache(64, "f16", "f16", 1, 200), Tables(4, 1000)
    drawn = Drawn(cache, tables, 1)
    drawn.centre = drawn.keys[50].copy()
    drawn.redraw(drawn.hashing.planes)
    drawn.add(0, 200)
    drawn.draw(queries(1, 1, 64), Range(0, 199, 200))
    place = drawn.lists[0, : drawn.counts[0]].tolist().index(50)
    x = 0.5**4
    u = 1 - (1 - x) ** 1000 - 1000 * x * (1 - x) ** 999
    assert drawn.log_weights[0, place] == pytest.approx(-np.log(u), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "bias"), [(75, 0.05), (150, 0.03), (300, 0.02)])
def test_redrawn_planes_are_unbiased(make_cache, queries, count: int, bias: float) -> None:
    """Over 2,000 draws of planes: each token comes as often as u says, and what is estimated is
    right in the mean. The ratio is biased, the less the more tables there are."""
    n, tables, runs = 300, Tables(10, count), 2000
    cache, q = make_cache(64, "f16", "f16", 1, n), queries(1, 1, 64)
    drawn = Drawn(cache, tables, 1)
    keys = (drawn.keys[:, 0] - drawn.centre[0]).astype(np.float64)
    q += 0.5 * (keys[7] + keys[8]).astype(np.float32)
    among = Range(0, n - 1, n)
    planes = drawn.hashing.planes.swapaxes(1, 2).reshape(-1, 64)[: 10 * count]
    _, weights = draw_reference(q[0].astype(np.float64), keys, planes, 10, count)
    u, terms = np.exp(-weights[0, :-1]), np.exp(keys @ q[0, 0] / 8)
    values = cache.stored()[1][:, 0, 0].astype(np.float64) + 1  # a sum that is not near 0
    hits, sums = np.zeros(n), np.zeros((runs, 3))
    for run in range(runs):
        drawn.redraw(table_planes(64, tables, (run,)))
        drawn.add(0, n)
        drawn.draw(q, among)
        listed = drawn.lists[0, : drawn.counts[0]]
        hits[listed] += 1
        weight = terms[listed] * np.exp(drawn.log_weights[0, : len(listed)].astype(np.float64))
        sums[run] = len(listed), weight.sum(), weight @ values[listed]
    error = (hits[:-1] / runs - u) / np.sqrt(u * (1 - u) / runs)
    assert (np.abs(error) < 3).mean() > 0.98 and np.abs(error).max() < 4.5
    truth = np.array([u.sum() + 1, terms.sum(), terms @ values])
    deviation = (sums.mean(0) - truth) / (sums.std(0) / np.sqrt(runs))
    ratio = (sums[:, 2] / sums[:, 1]).mean() / (truth[2] / truth[1]) - 1
    print(f"L {count}: {deviation} standard errors, ratio off by {ratio:+.4f}")
    assert (np.abs(deviation) < 3).all()
    assert abs(ratio) < bias


@pytest.mark.parametrize(("bits", "count"), [(3, 10), (17, 10), (10, 1), (10, 1001)])
def test_other_tables_are_refused(bits: int, count: int) -> None:
    with pytest.raises(OpsError, match=f"{count} of {bits} bits, expected 2 to 1000 of 4 to 16"):
        Tables(bits, count)
