"""Choices by sketches for many rows: each row's list is that of `best_sketched` for it alone."""

import numpy as np
import pytest

from kvarn.ops.attention.api import append_kv
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.select import largest_reference
from kvarn.ops.select import Range, RowSketchScratch, Wanted, best_sketched_rows

from ...thread_counts import with_threads
from .test_sketch import SEED, Sketches
from .test_sketch_frames import frame_of


def _rows(sketches: Sketches, q, among: Range, k: int, few: int, scratch=None):
    """The list of each row and KV head."""
    cache = sketches.cache
    n_rows, heads, j = len(q), q.shape[1], cache.n_kv_heads
    lists = np.full((n_rows, j, k * heads // j), 0xFFFFFFFF, np.uint32)
    counts = np.zeros((n_rows, j), np.int64)
    scratch = scratch or RowSketchScratch(heads, j, among.last, few, cache.layout)
    wanted = Wanted(k, few, SEED)
    best_sketched_rows(q, sketches.keys, among, wanted, lists, counts, scratch=scratch)
    return [[lists[r, i, : counts[r, i]] for i in range(j)] for r in range(n_rows)]


def _check(sketches: Sketches, q, among: Range, k: int, few: int, scratch=None) -> None:
    got = _rows(sketches, q, among, k, few, scratch)
    for row, lists in zip(q, got, strict=True):
        for tokens, alone in zip(lists, sketches.choose(row[None], among, k, few), strict=True):
            np.testing.assert_array_equal(tokens, alone[among.first :])


@pytest.mark.parametrize(
    ("head_dim", "kind", "n_kv_heads", "group"),
    [
        (64, "q8_0", 2, 4),
        (64, "f16", 1, 1),
        pytest.param(80, "q4_0", 1, 8, marks=pytest.mark.slow),
        pytest.param(128, "f16", 1, 1, marks=pytest.mark.slow),
        pytest.param(256, "q8_0", 1, 3, marks=pytest.mark.slow),
        pytest.param(512, "f16", 1, 4, marks=pytest.mark.slow),
        pytest.param(576, "q8_0", 1, 2, marks=pytest.mark.slow),
    ],
)
def test_each_row_chooses_as_alone(
    make_cache, queries, head_dim: int, kind: str, n_kv_heads: int, group: int
) -> None:
    for last, first, k, few, n_rows in (
        (1, 0, 1, 1, 2),
        (1024, 3, 16, 33, 3),
        (3000, 128, 1400, 2800, 2),
        (9000, 5, 100, 200, 33),
        (40_000, 128, 400, 800, 3),
    ):
        cache = make_cache(head_dim, kind, kind, n_kv_heads, last)
        sketches = Sketches(cache, frame_of(n_kv_heads, head_dim))
        sketches.add(0, last)
        q = queries(n_rows, n_kv_heads * group, head_dim)
        _check(sketches, q, Range(first, last, last), k, few)


def test_the_estimates_choose_the_candidates_of_every_row(make_cache, queries) -> None:
    """With as many candidates as tokens wanted, a list is that of the formula's estimates."""
    cache, q = make_cache(64, "f16", "f16", 1, 20_000), queries(40, 1, 64)
    sketches = Sketches(cache)
    sketches.add(0, 20_000)
    got = _rows(sketches, q, Range(3, 19_000, 19_000), 500, 500)
    estimates = sketches.estimates(q[:, 0])
    for row, lists in zip(estimates, got, strict=True):
        want = largest_reference(row[None], 1, (3, 19_000, 19_000), 500, SEED)[0]
        np.testing.assert_array_equal(lists[0], want[3:])


def test_all_candidates_give_the_exact_choice_of_every_row(make_cache, queries) -> None:
    cache, q = make_cache(64, "q8_0", "q8_0", 2, 3000), queries(5, 8, 64)
    sketches = Sketches(cache)
    sketches.add(0, 3000)
    keys = cache.stored()[0].astype(np.float64)
    got = _rows(sketches, q, Range(4, 2900, 2900), 20, 2896)
    for row, lists in zip(q, got, strict=True):
        scores = np.stack([keys[:, h // 4] @ row[h] for h in range(8)])
        want = largest_reference(scores, 2, (4, 2900, 2900), 20, SEED)
        for a, b in zip(lists, want, strict=True):
            assert len(np.setxor1d(a, b[4:])) <= 2  # float32 sums of nearly equal scores


def test_samples_that_mislead_lose_nothing(make_cache, queries, misleading) -> None:
    n = len(misleading)
    cache, q = make_cache(64, "f16", "f16", 1, n), queries(4, 1, 64)
    k = (cache.k * misleading[:, None, None]).astype(np.float32)
    append_kv(k, cache.v, cache.segments, cache.layout, 0)
    sketches = Sketches(cache)
    sketches.add(0, n)
    _check(sketches, q, Range(0, n, n), 1000, 1000)


def test_equal_keys_and_scratch_that_was_used_before(make_cache, queries) -> None:
    """Ties are decided by the hash of their positions, among estimates and among products."""
    cache, q = make_cache(64, "f16", "f16", 1, 20_000), queries(3, 1, 64)
    q[2] = 0  # all products are 0
    scratch = RowSketchScratch(1, 1, 20_000, 1400, cache.layout)
    for keys in (cache.k[:1].repeat(20_000, 0), cache.k, 0 * cache.k):
        append_kv(keys, cache.v, cache.segments, cache.layout, 0)
        sketches = Sketches(cache)
        sketches.add(0, 20_000)
        for last, k in ((20_000, 700), (130, 20), (9000, 512)):
            _check(sketches, q, Range(0, last, last), k, min(2 * k, last), scratch)


def test_one_thread_gives_the_same_lists(make_cache, queries) -> None:
    cache, q = make_cache(64, "q8_0", "q8_0", 2, 9000), queries(70, 8, 64)
    sketches = Sketches(cache)
    sketches.add(0, 9000)
    results = []
    for _ in with_threads(1, 2):
        results.append(_rows(sketches, q, Range(4, 8900, 8900), 50, 100))
    for row, other_row in zip(*results, strict=True):
        for a, b in zip(row, other_row, strict=True):
            np.testing.assert_array_equal(a, b)


def test_refuses_in_words(make_cache, queries) -> None:
    cache = make_cache(64, "f16", "f16", 1, 100)
    sketches, last = Sketches(cache), Range(0, 100, 100)
    scratch = RowSketchScratch(2, 1, 2 * SEGMENT, 10, cache.layout)
    for words, bad in {
        "q is": (queries(3, 2, 32), last, 5, 10),
        "cannot choose 11 tokens": (queries(3, 2, 64), last, 11, 10),
        "there is room for 10": (queries(3, 2, 64), last, 5, 11),
        "token 1999 lies outside": (queries(3, 2, 64), Range(0, 2000, 2000), 5, 10),
    }.items():
        with pytest.raises(OpsError, match=words):
            _rows(sketches, *bad, scratch)
