"""Sketches against RaBitQ's formula in NumPy, and what is chosen with them against all products.

What chooses takes 6 to 10 seconds to compile for each type, row length and number of query heads:
tests share them.
"""

import numpy as np
import pytest

from kvarn.jit.launch.define import Share, kernel
from kvarn.jit.launch.views import of_thread
from kvarn.ops.attention import TileLayout
from kvarn.ops.attention.api import append_kv
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.select import (
    estimates_reference,
    largest_reference,
    sketch_reference,
)
from kvarn.ops.select import (
    Frame,
    Lists,
    Range,
    Rotation,
    SketchedKeys,
    SketchScratch,
    Wanted,
    best_sketched,
    key_moments,
    sketch_keys,
)
from kvarn.ops.select.masks import kind_of
from kvarn.ops.select.queries import LONG_RANGE, RANGE
from kvarn.ops.select.sketch.arguments import Scratch
from kvarn.ops.select.sketch.sums import Sketches as SegmentSketches
from kvarn.ops.select.sketch.sums import sum_segment

from ...thread_counts import with_threads

SEED = 5


class Sketches:
    """The two columns over a cache."""

    def __init__(self, cache, frame: Frame | None = None) -> None:
        self.cache, self.rotation = cache, Rotation.random(cache.layout.head_dim, SEED)
        self.frame = frame or Frame.plain(cache.n_kv_heads, cache.layout.head_dim)
        n, j = len(cache.segments), cache.n_kv_heads
        self.bits = np.zeros((n, j, SEGMENT, self.rotation.bits // 8), np.uint8)
        self.factors = np.zeros((n, j, SEGMENT), np.float16)
        self.items = [c.ctypes.data + c[0].nbytes * np.arange(n) for c in (self.bits, self.factors)]

    @property
    def keys(self) -> SketchedKeys:
        return SketchedKeys(self.cache.segments, *self.items, self.rotation, self.frame)

    def add(self, first: int, last: int) -> None:
        sketch_keys(self.keys, self.cache.layout, first, last)

    def estimates(self, q) -> np.ndarray:
        """Of each query of q (n, E) and each token of KV head 0, with tables of int8, in units."""
        n = self.rotation.bits
        y = np.zeros((len(q), n))
        y[:, : q.shape[1]] = q * self.frame.inverse[0, : q.shape[1]]
        y = y @ self.rotation.weights[: n * n].reshape(n, n)
        share = RANGE if n <= 512 else LONG_RANGE
        y *= 127 / (share * np.sqrt(n) * np.linalg.norm(y, axis=1, keepdims=True))
        halves = np.unpackbits(np.arange(16, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        tables = np.rint(y.reshape(len(q), -1, 4) @ (halves[:, :4] * 2.0 - 1).T)
        bits = self.bits[:, 0].reshape(-1, n // 8)
        index = np.stack([bits & 15, bits >> 4], 2).reshape(len(bits), -1)
        sums = tables[:, 0, index[:, 0]]
        for i in range(1, n // 4):
            sums = np.clip(sums + tables[:, i, index[:, i]], -128, 127)
        return np.maximum(sums, -127).astype(np.float32) * self.factors[:, 0].ravel().astype(
            np.float32
        )

    def choose(self, q, among: Range, k: int, few: int) -> list[np.ndarray]:
        cache = self.cache
        j = cache.n_kv_heads
        index = np.zeros((j, among.stop + few * q.shape[1]), np.uint32)
        counts = np.zeros(j, np.int64)
        scratch = SketchScratch(q.shape[1], j, among.stop, few, cache.layout)
        best_sketched(
            q, self.keys, among, Wanted(k, few, SEED), Lists(index, counts), scratch=scratch
        )
        return [index[i, :n].copy() for i, n in enumerate(counts)]


@pytest.mark.parametrize(
    ("head_dim", "kind"), [(64, "q8_0"), (80, "q4_0"), (512, "f16"), (576, "q4_0")]
)
def test_sketches_of_stored_keys(make_cache, head_dim: int, kind: str) -> None:
    cache = make_cache(head_dim, kind, kind, 2, 1100)
    rng = np.random.default_rng(2)
    centre = rng.standard_normal((2, head_dim)).astype(np.float32)
    scales = rng.uniform(0.3, 3, (2, head_dim)).astype(np.float32)
    sketches = Sketches(cache, Frame.of(centre, scales))
    for first, last in ((0, 1000), (1000, 1001), (1001, 1100)):
        sketches.add(first, last)
    keys, _ = cache.stored()
    n = sketches.rotation.bits
    rotation = sketches.rotation.weights[: n * n].reshape(n, n)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(n), atol=1e-5)
    for j in range(2):
        signs, factors = sketch_reference((keys[:, j] - centre[j]) * scales[j], rotation)
        bits = sketches.bits[:, j].reshape(-1, n // 8)[:1100]
        got = np.unpackbits(bits, axis=1, bitorder="little") * 2.0 - 1
        assert (got == signs).mean() > 0.999  # a sum within rounding of 0 may fall either way
        np.testing.assert_allclose(
            sketches.factors[:, j].ravel()[:1100], factors, rtol=2e-3, atol=1e-4
        )


def test_estimates_are_unbiased_over_rotations() -> None:
    rng = np.random.default_rng(0)
    keys, q = rng.standard_normal((50, 64)), rng.standard_normal((1, 64))
    runs = []
    for seed in range(200):
        rotation = Rotation.random(64, seed)
        matrix = rotation.weights[: 64 * 64].reshape(64, 64)
        runs.append(estimates_reference(q, *sketch_reference(keys, matrix), matrix)[0])
    error = np.mean(runs, 0) - keys @ q[0]
    bound = 4.5 * np.std(runs, 0) / np.sqrt(len(runs))  # 50 keys: 3 in 10,000 tests would fail
    assert (np.abs(error) < bound).all()


@pytest.mark.parametrize(
    ("head_dim", "kind", "heads", "n_kv_heads"),
    [(64, "q8_0", 8, 2), (128, "f16", 1, 1), (512, "f16", 4, 1), (576, "f16", 4, 1)],
)
def test_all_candidates_give_the_exact_choice(
    make_cache, queries, head_dim: int, kind: str, heads: int, n_kv_heads: int
) -> None:
    cache, q = make_cache(head_dim, kind, kind, n_kv_heads, 3000), queries(1, heads, head_dim)
    sketches = Sketches(cache)
    sketches.add(0, 3000)
    keys, _ = cache.stored()
    scores = np.stack([keys[:, h * n_kv_heads // heads] @ q[0, h] for h in range(heads)])
    got = sketches.choose(q, Range(4, 2900, 3000), 20, 3000)
    for a, b in zip(got, largest_reference(scores, n_kv_heads, (4, 2900, 3000), 20, SEED)):
        assert len(np.setxor1d(a, b)) <= 2  # float32 sums of nearly equal scores


def test_few_candidates_find_most_of_the_mass(make_cache, queries) -> None:
    cache, q = make_cache(64, "f16", "f16", 1, 12_000), queries(1, 1, 64) * 0.5
    sketches = Sketches(cache)
    sketches.add(0, 12_000)
    keys, _ = cache.stored()
    for few, least in ((120, 0.5), (360, 0.75), (1200, 0.95)):
        got = sketches.choose(q, Range(0, 11_999, 12_000), 120, few)[0]
        mass = np.exp(keys[:, 0] @ q[0, 0])
        best = np.sort(mass)[-120:].sum()
        assert mass[got].sum() > least * best


@pytest.mark.parametrize(
    ("head_dim", "kind", "longest"),
    [(64, "f16", 1.0), (128, "f16", 1.0), (64, "f16", 8.0)],
)
def test_the_estimates_choose_the_candidates(
    make_cache, queries, head_dim: int, kind: str, longest: float
) -> None:
    """With as many candidates as tokens wanted, the list is that of the formula's estimates.

    Keys are up to `longest` times as long as others, 64 neighbours each as long.
    """
    cache, q = make_cache(head_dim, kind, kind, 1, 20_000), queries(1, 1, head_dim)
    lengths = np.random.default_rng(1).uniform(1, longest, 20_000 // 64 + 1).repeat(64)[:20_000]
    k = (cache.k * lengths[:, None, None]).astype(np.float32)
    append_kv(k, cache.v, cache.segments, cache.layout, 0)
    sketches = Sketches(cache)
    sketches.add(0, 20_000)
    keys, _ = cache.stored()
    matrix = sketches.rotation.weights[: head_dim**2].reshape(head_dim, head_dim)
    estimates = estimates_reference(q[0], *sketch_reference(keys[:, 0], matrix), matrix)
    got = sketches.choose(q, Range(3, 19_000, 20_000), 500, 500)[0]
    want = largest_reference(estimates, 1, (3, 19_000, 20_000), 500, SEED)[0]
    assert len(got) == len(want)
    assert len(np.intersect1d(got, want)) > 0.95 * len(want)  # tables are rounded to int8
    rounded = largest_reference(sketches.estimates(q[0]), 1, (3, 19_000, 20_000), 500, SEED)[0]
    np.testing.assert_array_equal(got, rounded)


@pytest.mark.parametrize(("head_dim", "kind"), [(64, "q8_0"), (80, "q4_0"), (256, "f16")])
def test_moments_of_stored_keys(make_cache, head_dim: int, kind: str) -> None:
    cache = make_cache(head_dim, kind, kind, 2, 3000)
    keys = cache.stored()[0].astype(np.float64)
    for first, last in ((4, 2048), (0, 1), (1023, 1025), (1500, 3000)):
        mean, variance = key_moments(cache.segments, cache.layout, 2, first, last)
        np.testing.assert_allclose(mean, keys[first:last].mean(0), atol=1e-6)
        np.testing.assert_allclose(variance, keys[first:last].var(0), atol=2e-6)
    with pytest.raises(OpsError, match="no tokens 7 to 6"):
        key_moments(cache.segments, cache.layout, 2, 7, 7)


@pytest.mark.parametrize("side", [1, -1])
def test_sums_beyond_int8_saturate(make_cache, queries, side: int) -> None:
    """Keys near the query's line: the largest estimates are cut off, on both sides."""
    n = 6000
    cache, q = make_cache(64, "f16", "f16", 1, n), queries(1, 1, 64)
    along = np.random.default_rng(3).uniform(-1, 2, n)
    k = side * along[:, None, None] * q + 0.2 * cache.k
    append_kv(k.astype(np.float32), cache.v, cache.segments, cache.layout, 0)
    sketches = Sketches(cache)
    sketches.add(0, n)
    estimates = sketches.estimates(q[0])
    cut = np.abs(estimates[0, :n]) >= 127 * sketches.factors[:, 0].ravel()[:n].astype(np.float32)
    assert 0.05 < cut.mean() < 0.95
    for k in (50, 4000):
        got = sketches.choose(q, Range(3, n - 10, n), k, k)[0]
        np.testing.assert_array_equal(
            got, largest_reference(estimates, 1, (3, n - 10, n), k, SEED)[0]
        )


@kernel
def _masks_of(share: Share, bits: int, factors: int, memory: Scratch):
    """`sum_segment` of two queries, at addresses of the sketches of a segment."""
    sketches, scratch = SegmentSketches(bits, factors), of_thread(memory, 0)
    limits = scratch.search.candidates.limits
    sum_segment(kind_of(64, 2), sketches, sketches, scratch.search.tables, limits, scratch.scan, 0)


@pytest.mark.parametrize("least", [0.0, 0.01])
@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 20.0])
def test_masks_hold_what_reaches_a_limit_and_little_else(spread: float, least: float) -> None:
    """Limits are estimates of some token, negative ones too; factors differ by up to 2 ** spread,
    one is `least`."""
    rng = np.random.default_rng(7)
    bits, tables = rng.integers(0, 256, (SEGMENT, 8), np.uint8), rng.integers(-7, 8, (2, 16, 16))
    factors = (0.01 * 2 ** rng.uniform(0, spread, SEGMENT)).astype(np.float16)
    factors[5] = least
    scratch = SketchScratch(2, 1, SEGMENT, 1, TileLayout(64))
    scratch.ready(1)
    arrays = scratch.arrays
    masks, sums = arrays.scan.masks[0, 0], arrays.scan.sums[0, 0]
    halves = np.stack([bits & 15, bits >> 4], 2).reshape(SEGMENT, 16)
    want = np.stack([table[np.arange(16), halves].sum(1) for table in tables])
    estimates = want.astype(np.float32) * factors.astype(np.float32)
    arrays.search.tables[0] = tables
    for share in (0.0, 0.01, 0.1, 0.5, 0.999):
        limits = -np.sort(-estimates)[:, int(share * SEGMENT)].copy()
        if share == 0.1:
            limits[0] = 0
        arrays.search.candidates.limits[0] = limits
        _masks_of(bits.ctypes.data, factors.ctypes.data, scratch.arguments.address, parallel=False)
        np.testing.assert_array_equal(sums, want)
        masked = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little").astype(bool)
        for h, limit in enumerate(limits):
            assert masked[h][estimates[h] >= limit].all()
            if limit > 0:
                # The least factors share a class, which ends above two thirds of the greatest.
                most = np.maximum((1 + 1 / 32) * factors.astype(float), 0.77 * factors.max())
                assert ((want[h] + 1) * most >= limit)[masked[h]].all()
            else:
                inside = factors > 0.77 * factors.max()
                fewest = np.where(inside, factors / (1 + 1 / 32), factors.min().astype(float))
                assert ((want[h] + 1) * fewest >= limit)[masked[h]].all()


def test_a_sample_that_misleads_loses_nothing(make_cache, queries, misleading) -> None:
    n = len(misleading)
    cache, q = make_cache(64, "f16", "f16", 1, n), queries(1, 1, 64)
    k = (cache.k * misleading[:, None, None]).astype(np.float32)
    append_kv(k, cache.v, cache.segments, cache.layout, 0)
    sketches = Sketches(cache)
    sketches.add(0, n)
    got = sketches.choose(q, Range(0, n, n), 1000, 1000)[0]
    want = largest_reference(sketches.estimates(q[0]), 1, (0, n, n), 1000, SEED)[0]
    np.testing.assert_array_equal(got, want)


def test_one_thread_gives_the_same_lists(make_cache, queries) -> None:
    cache, q = make_cache(64, "q8_0", "q8_0", 2, 3000), queries(1, 8, 64)
    results = []
    for _ in with_threads(1, 2):
        sketches = Sketches(cache)
        sketches.add(0, 3000)
        results.append(sketches.choose(q, Range(4, 2900, 3000), 20, 60))
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


def test_refuses_in_words(make_cache, queries) -> None:
    cache = make_cache(64, "f16", "f16", 1, 20)
    sketches = Sketches(cache)
    with pytest.raises(OpsError, match="outside the 1024 stored"):
        sketches.add(0, 1025)
    for words, bad in {
        "q is": (queries(1, 2, 32), Range(0, 20, 20), 5, 10),
        "cannot choose 11 tokens": (queries(1, 2, 64), Range(0, 20, 20), 11, 10),
        "outside the columns": (queries(1, 2, 64), Range(0, 20, 2000), 5, 10),
    }.items():
        with pytest.raises(OpsError, match=words):
            sketches.choose(*bad)
