"""Attention of rows over lists against float64 NumPy over the tokens that each row reads."""

from itertools import pairwise

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.ops.attention.arguments import Dense
from kvarn.ops.attention.prefill.listed import ListedScratch, ReadRows, listed_attention
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.attention import gathered_reference

from ...thread_counts import with_threads

TOLERANCE = 5e-6  # as dense attention


def _lists(n_rows: int, n_kv_heads: int, dense: Dense, most: int) -> tuple:
    """Lists of different lengths, some of them empty, of tokens between sinks and the first."""
    rng, between = np.random.default_rng(most), dense.first - dense.sinks
    lists = np.full((n_rows, n_kv_heads, max(1, most)), 0xFFFFFFFF, np.uint32)  # never read
    counts = rng.integers(0, min(most, between) + 1, (n_rows, n_kv_heads))
    counts[-1, -1] = 0
    for r, j in np.ndindex(counts.shape):
        chosen = rng.choice(between, counts[r, j], replace=False)
        lists[r, j, : counts[r, j]] = dense.sinks + np.sort(chosen)
    return lists, counts


def _attend(cache, q, lists, counts, dense: Dense, **of_softmax) -> np.ndarray:
    out = np.full_like(q, np.nan)
    scratch = ListedScratch(q.shape[1], cache.n_kv_heads, cache.layout)
    softmax = Softmax(**{"scale": cache.layout.head_dim**-0.5} | of_softmax)
    read = ReadRows(lists, counts, dense)
    listed_attention(q, read, cache.segments, out, softmax=softmax, scratch=scratch)
    return out


def _reference(cache, q, lists, counts, dense: Dense, **of_softmax) -> np.ndarray:
    """Each row's tokens as one list for each KV head."""
    stored, outputs = cache.stored(), []
    softmax = Softmax(**{"scale": cache.layout.head_dim**-0.5} | of_softmax)
    for r, row in enumerate(q):
        tokens_of_heads = [
            np.r_[: dense.sinks, lists[r, j, :n], dense.first : dense.start + r + 1]
            for j, n in enumerate(counts[r])
        ]
        index = np.zeros((len(tokens_of_heads), max(map(len, tokens_of_heads))), np.uint32)
        for to, one in zip(index, tokens_of_heads, strict=True):
            to[: len(one)] = one
        n = np.array([len(one) for one in tokens_of_heads])
        outputs.append(gathered_reference(row[None], *stored, index, n, softmax=softmax)[0])
    return np.array(outputs)


@pytest.mark.parametrize(
    ("head_dim", "k", "v", "heads", "kv_heads"),
    [
        (64, "q8_0", "q8_0", 8, 1),
        (256, "f16", "f16", 4, 2),
        (80, "q4_0", "f16", 5, 1),
        (96, "q8_0", "q4_0", 1, 1),
        (576, "f16", "f16", 4, 1),
        (32, "f16", "f16", 130, 1),  # more query heads than a block has rows
    ],
)
def test_each_row_reads_its_tokens(make_cache, queries, head_dim, k, v, heads, kv_heads) -> None:
    cache = make_cache(head_dim, k, v, kv_heads, 1700)
    for dense, n, most in (
        (Dense(0, 0, 5), 3, 0),
        (Dense(128, 896, 1024), 49, 700),
        (Dense(100, 1520, 1650), 50, 20),
    ):
        lists, counts = _lists(n, kv_heads, dense, most)
        q = queries(n, heads, head_dim)
        logits = np.linspace(-9.0, 9.0, heads, dtype=np.float32)
        for options in ({}, {"softcap": 2.0}, {"sinks": logits}):
            got = _attend(cache, q, lists, counts, dense, **options)
            want = _reference(cache, q, lists, counts, dense, **options)
            assert np.abs(got - want).max() < TOLERANCE


def test_lists_of_more_than_a_segment_and_scores_that_differ_much(make_cache, queries) -> None:
    cache, dense = make_cache(64, "q8_0", "q8_0", 2, 4200), Dense(128, 4080, 4100)
    lists, counts = _lists(9, 2, dense, 3000)
    q = 20 * queries(9, 8, 64)
    got, want = (f(cache, q, lists, counts, dense) for f in (_attend, _reference))
    assert np.abs(got - want).max() < 1e-4  # scores of up to 100: rounded to 1e-5


def test_cuts_and_threads_give_the_same_bits(make_cache, queries) -> None:
    cache, dense = make_cache(64, "q8_0", "q8_0", 2, 1700), Dense(128, 896, 1024)
    lists, counts = _lists(100, 2, dense, 300)
    q = queries(100, 8, 64)
    for _ in with_threads(threads.max_threads()):
        whole = _attend(cache, q, lists, counts, dense)
    for _ in with_threads(1):
        for a, b in (*pairwise((0, 100)), *pairwise((0, 1, 2, 50, 97, 100))):
            part_dense = dense._replace(start=dense.start + a)
            part = _attend(cache, q[a:b], lists[a:b], counts[a:b], part_dense)
            np.testing.assert_array_equal(part, whole[a:b])


def test_refuses_in_words(make_cache, queries) -> None:
    cache, dense = make_cache(64, "q8_0", "q8_0", 2, 1700), Dense(128, 896, 1024)
    lists, counts = _lists(4, 2, dense, 30)
    q = queries(4, 8, 64)
    for words, bad in {
        "q is": (q[:, :4], lists, counts, dense),
        "lists are int64": (q, lists.astype(np.int64), counts, dense),
        "expected 0 to 30": (q, lists, counts + 31, dense),
        "multiple of 16": (q, lists, counts, Dense(128, 897, 1024)),
        "4 rows in 2 segments": (q, lists, counts, Dense(128, 896, 2045)),
    }.items():
        with pytest.raises(OpsError, match=words):
            bad_q = np.ascontiguousarray(bad[0])
            listed_attention(
                bad_q, ReadRows(*bad[1:]), cache.segments, np.empty_like(bad_q),
                softmax=Softmax(1.0),
                scratch=ListedScratch(8, 2, cache.layout),
            )  # fmt: skip
