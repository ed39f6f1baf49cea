"""Means of blocks for rows of a prompt against NumPy: one softmax over all that a row reads."""

from itertools import pairwise

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.ops.attention.arguments import Dense, Scoring
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.attention.prefill.listed import ListedScratch, ReadRows, listed_attention
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.errors import OpsError
from kvarn.ops.select import RowMeansScratch, add_row_means

from ...thread_counts import with_threads
from .test_means import TOLERANCE, Means


class RowMeans(Means):
    """Lists of rows over a cache, and what is attended to with means and without."""

    def __init__(self, cache, dense: Dense, n_rows: int, most: int) -> None:
        super().__init__(cache)
        rng, shape = np.random.default_rng(most), (n_rows, cache.n_kv_heads)
        self.dense, self.lists = dense, np.full((*shape, max(most, 1)), 0xFFFFFFFF, np.uint32)
        self.counts = rng.integers(0, most + 1, shape)
        for r, j in np.ndindex(shape):
            tokens = rng.choice(dense.first - dense.sinks, self.counts[r, j], replace=False)
            self.lists[r, j, : len(tokens)] = dense.sinks + np.sort(tokens)

    def attend(self, q, *, scale=0.2, softcap=0.0, rows=slice(None)) -> np.ndarray:
        cache, lists, counts = self.cache, self.lists[rows], self.counts[rows]
        dense = self.dense._replace(start=self.dense.start + (rows.start or 0))
        out, softmaxes = np.full_like(q, np.nan), np.empty((*q.shape[:2], 2), np.float32)
        heads, head_dim = q.shape[1], cache.layout.head_dim
        read, softmax = ReadRows(lists, counts, dense), Softmax(scale, softcap)
        listed_attention(
            q, read, cache.segments, out, softmax=softmax,
            softmaxes=softmaxes, scratch=ListedScratch(heads, cache.n_kv_heads, cache.layout),
        )  # fmt: skip
        self.before = out.copy()
        items = self.items[: -(-dense.first // SEGMENT)]
        add_row_means(
            q, read, items, softmaxes, out, scoring=softmax.scoring,
            scratch=RowMeansScratch(heads, cache.n_kv_heads, head_dim),
        )  # fmt: skip
        return out

    def formula(self, q, *, scale=0.2, softcap=0.0) -> np.ndarray:
        keys, values = (x.astype(np.float64) for x in self.cache.stored())
        (sinks, first, start), n = self.dense, q.shape[2]
        out, group = np.empty(q.shape), q.shape[1] // self.cache.n_kv_heads
        means = [self.stored(j)[:2] for j in range(self.cache.n_kv_heads)]
        orders = [self.order(j) for j in range(self.cache.n_kv_heads)]
        n_full = 32 * -(-first // SEGMENT)
        for t, h in np.ndindex(q.shape[:2]):
            j, x = h // group, q[t, h].astype(np.float64)
            tokens = self.lists[t, j, : self.counts[t, j]]
            read = np.r_[:sinks, tokens, first : start + t + 1]
            left = (~np.isin(orders[j][:n_full], read)).sum(1)
            on = left > 0
            mean_keys, mean_values = (m[:n_full][on, :n] for m in means[j])
            s = scale * np.r_[keys[read, j] @ x, mean_keys @ x]
            if softcap:
                s = softcap * np.tanh(s / softcap)
            p = np.exp(s - s.max()) * np.r_[np.ones(len(read)), left[on]]
            exact = p[: len(read)].sum()
            p[len(read) :][p[len(read) :] < 2**-20 * exact] = 0
            out[t, h] = p @ np.r_[values[read, j], mean_values] / p.sum()
        return out


@pytest.mark.parametrize(
    ("head_dim", "k", "v", "heads", "kv_heads", "n_tokens"),
    [
        (64, "q8_0", "q8_0", 8, 2, 3 * SEGMENT + 70),
        (96, "q8_0", "q4_0", 5, 1, 6 * SEGMENT),
        (80, "q4_0", "f16", 5, 1, 2 * SEGMENT + 99),
        (256, "f16", "f16", 4, 2, 4 * SEGMENT),
        (576, "f16", "f16", 4, 1, 2 * SEGMENT + 99),
        (32, "f16", "f16", 98, 1, 2 * SEGMENT),  # more query heads than a block has rows
    ],
)
def test_rows_count_what_they_did_not_read(
    make_cache, queries, head_dim, k, v, heads, kv_heads, n_tokens
) -> None:
    cache, n = make_cache(head_dim, k, v, kv_heads, n_tokens), 27
    open_segment = (n_tokens - n) // SEGMENT * SEGMENT
    dense = Dense(128, open_segment - 128, n_tokens - n)
    means, q = RowMeans(cache, dense, n, 300), queries(n, heads, head_dim)
    q *= min(1.0, 300 / head_dim)  # longer ones look at single tokens
    usual = head_dim**-0.5
    for options in ({"scale": usual}, {"scale": usual, "softcap": 2.0}, {"scale": 2 * usual}):
        got, want = means.attend(q, **options), means.formula(q, **options)
        assert np.abs(got - want).max() < TOLERANCE
        if options == {"scale": usual}:
            assert np.abs(means.before - want).max() > 100 * TOLERANCE


def test_all_read_counts_nothing(make_cache, queries) -> None:
    """Tokens that are read leave nothing of their blocks."""
    cache, dense = make_cache(64, "q8_0", "q8_0", 2, SEGMENT + 20), Dense(128, 896, SEGMENT)
    means, q = RowMeans(cache, dense, 20, 768), queries(20, 4, 64)
    means.counts[:] = 768
    means.lists[:] = np.arange(128, 896, dtype=np.uint32)
    got = means.attend(q)
    assert np.abs(got - means.before).max() < 1e-6


def test_blocks_below_the_least_weight_count_nothing(make_cache, queries) -> None:
    """Where one token has nearly all of the mass, no block reaches its share of 2^-20."""
    cache, dense = make_cache(64, "f16", "f16", 1, 2 * SEGMENT + 9), Dense(0, 2048, 2048)
    means = RowMeans(cache, dense, 9, 1)
    means.counts[:], means.lists[:] = 1, 700
    keys, _ = cache.stored()
    q = np.repeat(keys[None, 700].astype(np.float32), 9, 0) * 40
    got = means.attend(q, scale=1.0)
    assert np.abs(got - means.before).max() < 1e-6
    assert np.abs(got - means.formula(q, scale=1.0)).max() < TOLERANCE


def test_cuts_and_threads_give_the_same_bits(make_cache, queries) -> None:
    cache, dense = make_cache(64, "q8_0", "q8_0", 2, 6 * SEGMENT), Dense(128, 4992, 5300)
    means, q = RowMeans(cache, dense, 100, 400), queries(100, 8, 64)
    for _ in with_threads(threads.max_threads()):
        want = means.attend(q)
    for _ in with_threads(1):
        for a, b in (*pairwise((0, 100)), *pairwise((0, 1, 2, 50, 97, 100))):
            got = means.attend(q[a:b], rows=slice(a, b))
            np.testing.assert_array_equal(got, want[a:b])


def test_refuses_in_words(make_cache, queries) -> None:
    cache, dense = make_cache(64, "q8_0", "q8_0", 2, 1030), Dense(128, 896, 1024)
    means, q = RowMeans(cache, dense, 4, 30), queries(4, 8, 64)
    lists, counts, items, sums = means.lists, means.counts, means.items, np.ones((4, 8, 2), "f4")
    for words, bad in {
        "q is": (q[:, :4], lists, counts, dense, items, sums),
        "softmaxes is": (q, lists, counts, dense, items, sums[:2]),
        "lists are int64": (q, lists.astype(np.int64), counts, dense, items, sums),
        "1 segments and Dense": (q, lists, counts, dense._replace(start=1000), items, sums),
    }.items():
        q_ = np.ascontiguousarray(bad[0])
        with pytest.raises(OpsError, match=words):
            add_row_means(
                q_, ReadRows(*bad[1:4]), *bad[4:], np.empty_like(q_), scoring=Scoring(1.0, 0.0),
                scratch=RowMeansScratch(8, 2, 64),
            )  # fmt: skip
    with pytest.raises(OpsError, match="97 query heads cannot share 2 KV heads"):
        RowMeansScratch(97, 2, 64)
