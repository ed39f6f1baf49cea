"""The best of the nearest signatures: NumPy's sorts of distances, then of products."""

import numpy as np
import pytest

from kvarn.ops.attention.api import append_kv
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.select import reranked_reference
from kvarn.ops.select import (
    Lists,
    Range,
    RerankedScratch,
    RowRerankedScratch,
    RowSignatureScratch,
    SignatureScratch,
    SignedKeys,
    SignedQueries,
    Wanted,
    best_signed,
    best_signed_rows,
    nearest,
    nearest_rows,
)

from ...thread_counts import with_threads
from .test_hamming import SEED, _column
from .test_taken import bits_of, some_taken


class Signed:
    """A cache of small whole numbers, whose products are exact and often equal, and signatures."""

    def __init__(self, make_cache, bits: int, n_kv_heads: int, n: int, head_dim: int = 32) -> None:
        self.cache, self.bits = make_cache(head_dim, "f16", "f16", n_kv_heads, n), bits
        cache, self.rng = self.cache, np.random.default_rng(n + bits)
        cache.k[:] = self.rng.integers(-3, 4, cache.k.shape)
        append_kv(cache.k, cache.v, cache.segments, cache.layout, 0)
        self.signatures = self.rng.integers(0, 1 << bits, (n_kv_heads, n), dtype=np.uint64)
        self.column, items = _column(self.signatures, bits)
        self.keys = SignedKeys(cache.segments, items, bits)

    def queries(self, n_rows: int, group: int) -> SignedQueries:
        n, rng, head_dim = self.cache.n_kv_heads, self.rng, self.cache.layout.head_dim
        q = rng.integers(-2, 3, (n_rows, n * group, head_dim)).astype(np.float32)
        return SignedQueries(
            q, rng.integers(0, 1 << self.bits, (n_rows, n, group), dtype=np.uint64)
        )

    def scores(self, q: np.ndarray) -> np.ndarray:
        """(H, S) of one row."""
        n = self.cache.n_kv_heads
        return np.stack([self.cache.k[:, h * n // len(q)] @ head for h, head in enumerate(q)])

    def want(self, queries: SignedQueries, row: int, among: Range, wanted: Wanted, taken=None):
        q, signatures = queries.q[row], queries.signatures[row]
        return reranked_reference(
            signatures, self.signatures, self.bits, self.scores(q), among, wanted, taken
        )

    def choose(self, queries, among: Range, wanted: Wanted, taken=None, scratch=None):
        j, heads = self.cache.n_kv_heads, queries.q.shape[1]
        lists = Lists(np.zeros((j, among.stop), np.uint32), np.zeros(j, np.int64))
        most = wanted.n_candidates
        scratch = scratch or RerankedScratch(heads, j, among.stop, most, self.cache.layout)
        best_signed(queries, self.keys, among, wanted, lists, taken=taken, scratch=scratch)
        return [lists.tokens[i, :n] for i, n in enumerate(lists.counts)]

    def rows(self, queries, among: Range, wanted: Wanted, scratch=None):
        (n_rows, heads, _), j = queries.q.shape, self.cache.n_kv_heads
        lists = np.full((n_rows, j, wanted.k * heads // j), 0xFFFFFFFF, np.uint32)
        counts, most = np.zeros((n_rows, j), np.int64), wanted.n_candidates
        scratch = scratch or RowRerankedScratch(heads, j, among.stop, most, self.cache.layout)
        best_signed_rows(queries, self.keys, among, wanted, lists, counts, scratch=scratch)
        return [[lists[r, i, : counts[r, i]] for i in range(j)] for r in range(n_rows)]


SIZES = ((1, 0, 1, 1), (70, 3, 16, 33), (1024, 0, 1023, 1024), (3000, 128, 700, 1400),
         (9000, 5, 130, 520), (40_000, 128, 100, 400), (17_000, 128, 20, 40))  # fmt: skip


@pytest.mark.parametrize(
    ("bits", "n_kv_heads", "group"), [(32, 2, 4), (32, 1, 8), (32, 1, 2), (64, 1, 1)]
)
def test_single_and_rows_choose_what_two_sorts_give(
    make_cache, bits: int, n_kv_heads: int, group: int
) -> None:
    for last, first, k, few in SIZES:
        signed, wanted = Signed(make_cache, bits, n_kv_heads, last + 7), Wanted(k, few, SEED)
        queries = signed.queries(3 if last > 1024 else 33, group)
        in_rows = signed.rows(queries, Range(first, last, last), wanted)
        for row in range(len(queries.q)):
            query = SignedQueries(queries.q[row : row + 1], queries.signatures[row : row + 1])
            want = signed.want(queries, row, Range(first, last, last + 7), wanted)
            alone = signed.choose(query, Range(first, last, last + 7), wanted)
            for got, of_rows, expected in zip(alone, in_rows[row], want, strict=True):
                np.testing.assert_array_equal(got, expected)
                np.testing.assert_array_equal(of_rows, expected[first : len(expected) - 7])


def test_tokens_that_are_taken_are_no_candidates(make_cache) -> None:
    for n, k, few, count in ((70, 16, 40, 20), (1100, 300, 900, 300), (6100, 30, 120, 260)):
        signed = Signed(make_cache, 32, 2, n)
        queries, taken = signed.queries(1, 4), some_taken(signed.rng, 2, n, count)
        among, wanted = Range(0, n, n), Wanted(k, few, SEED)
        got = signed.choose(queries, among, wanted, bits_of(taken))
        all_that_compete = wanted._replace(n_candidates=min(few, n - count))
        want = signed.want(queries, 0, among, all_that_compete, taken)
        for tokens, expected in zip(got, want, strict=True):
            np.testing.assert_array_equal(tokens, expected)


def test_as_many_candidates_as_wanted_give_the_nearest(make_cache) -> None:
    """Of one query head: those that share a pass share candidates, too."""
    signed, n, k = Signed(make_cache, 32, 2, 5000), 5000, 200
    queries, among, wanted = signed.queries(4, 1), Range(64, n, n), Wanted(k, k, SEED)
    lists, counts = np.zeros((4, 2, k), np.uint32), np.zeros((4, 2), np.int64)
    nearest_rows(
        queries.signatures, signed.keys.items, 32, among, wanted, lists, counts,
        scratch=RowSignatureScratch(2, 2, n, k),
    )  # fmt: skip
    for got, expected in zip(signed.rows(queries, among, wanted), lists, strict=True):
        np.testing.assert_array_equal(got, expected)
    query = SignedQueries(queries.q[:1], queries.signatures[:1])
    index, n_listed = np.zeros((2, n), np.uint32), np.zeros(2, np.int64)
    nearest(
        query.signatures[0], signed.keys.items, 32, among, wanted, Lists(index, n_listed),
        scratch=SignatureScratch(2, 2, n, k),
    )  # fmt: skip
    for j, got in enumerate(signed.choose(query, among, wanted)):
        np.testing.assert_array_equal(got, index[j, : n_listed[j]])


@pytest.mark.parametrize(("head_dim", "kind"), [(80, "q4_0"), (128, "q8_0")])
def test_rows_choose_as_alone_whatever_keys_are_stored_as(make_cache, head_dim, kind) -> None:
    """By products as the kernels of both compute them; scratch was used before."""
    n = 3 * SEGMENT + 5
    cache = make_cache(head_dim, kind, kind, 2, n)
    signed = Signed.__new__(Signed)
    signed.cache, signed.bits, signed.rng = cache, 64, np.random.default_rng(head_dim)
    signed.signatures = signed.rng.integers(0, 1 << 64, (2, n), dtype=np.uint64)
    signed.column, items = _column(signed.signatures, 64)
    signed.keys = SignedKeys(cache.segments, items, 64)
    single = RerankedScratch(12, 2, n, 800, cache.layout)
    rows = RowRerankedScratch(12, 2, n, 800, cache.layout)
    for k, few in ((200, 800), (16, 64)):
        queries, among, wanted = signed.queries(5, 6), Range(10, n, n), Wanted(k, few, SEED)
        queries = queries._replace(q=signed.rng.standard_normal(queries.q.shape, np.float32))
        for row, lists in enumerate(signed.rows(queries, among, wanted, rows)):
            query = SignedQueries(queries.q[row : row + 1], queries.signatures[row : row + 1])
            for a, b in zip(signed.choose(query, among, wanted, None, single), lists, strict=True):
                np.testing.assert_array_equal(a[10:], b)


def test_the_same_for_any_number_of_threads(make_cache) -> None:
    signed = Signed(make_cache, 32, 3, 9000)
    queries, among, wanted = signed.queries(40, 4), Range(0, 9000, 9000), Wanted(50, 200, SEED)
    results = []
    for _ in with_threads(1, 2):
        results.append(signed.rows(queries, among, wanted))
    for a, b in zip(*results, strict=True):
        for tokens, other in zip(a, b, strict=True):
            np.testing.assert_array_equal(tokens, other)


def test_refuses_what_does_not_fit(make_cache) -> None:
    signed, n = Signed(make_cache, 32, 1, 500), 500
    queries, among = signed.queries(1, 2), Range(0, n, n)
    with pytest.raises(OpsError, match="cannot choose 60 of 50 candidates"):
        signed.choose(queries, among, Wanted(60, 50, SEED), scratch=RerankedScratch(
            2, 1, n, 100, signed.cache.layout))  # fmt: skip
    with pytest.raises(OpsError, match="room for 100"):
        signed.rows(queries, among, Wanted(60, 200, SEED), RowRerankedScratch(
            2, 1, n, 100, signed.cache.layout))  # fmt: skip
    with pytest.raises(OpsError, match="token 2999 lies outside"):
        signed.choose(queries, Range(0, 3000, 3000), Wanted(1, 2, SEED))
    short = SignedQueries(queries.q[:, :, :16].copy(), queries.signatures)
    with pytest.raises(OpsError, match="expected contiguous float32"):
        signed.rows(short, among, Wanted(1, 2, SEED))
