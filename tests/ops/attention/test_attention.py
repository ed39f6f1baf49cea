"""Attention against float64 NumPy over the stored keys and values, at odd sizes.

Rows that were never written are NaN, so one read too many shows. A kernel is compiled for each
(K type, V type, row length, heads at a time): combinations are pairwise, not all, and those that
other tests of attention and of models have compiled.
"""

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.ops.attention.api import AttentionScratch, append_kv, attention
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.attention import attention_reference

from ...thread_counts import with_threads

# head_dim, K type, V type, query heads, KV heads
COMBINATIONS = [
    (64, "f16", "f16", 8, 1),
    (96, "q8_0", "q4_0", 1, 1),
    (128, "q4_0", "q8_0", 6, 2),
    (256, "f16", "f16", 4, 2),
    (512, "f16", "f16", 4, 1),
    (512, "q8_0", "q4_0", 2, 1),
    (8, "f16", "f16", 3, 1),
    (80, "q4_0", "f16", 5, 1),
]
SIZES = (1, 15, 16, 17, 1023, 1024, 1025, 2050)
TOLERANCE = 5e-6  # outputs are of order 1, up to 4: float32 sums of up to 2,050 of them


def _check(cache, q, start: int, window: int | None = None, **of_softmax) -> None:
    k, v = (x[: start + len(q)] for x in cache.stored())
    got = cache.attend(q, start, window, **of_softmax)
    softmax = Softmax(**{"scale": cache.layout.head_dim**-0.5} | of_softmax)
    want = attention_reference(q, k, v, start, softmax=softmax, window=window)
    assert np.abs(got - want).max() < TOLERANCE


@pytest.mark.parametrize(("head_dim", "k", "v", "heads", "kv_heads"), COMBINATIONS)
def test_decode(make_cache, queries, head_dim, k, v, heads, kv_heads) -> None:
    cache, q = make_cache(head_dim, k, v, kv_heads, 1100), queries(1, heads, head_dim)
    for size in (1, 17, 1025):
        _check(cache, q, size - 1)
    _check(cache, q, 1099, window=93, softcap=2.0)


def test_decode_of_all_lengths(make_cache, queries) -> None:
    cache, q = make_cache(64, "f16", "f16", 2, max(SIZES)), queries(1, 8, 64)
    for size in SIZES:
        _check(cache, q, size - 1)
        for window in (1, 15, 16, 1024, 1025, 5000):
            _check(cache, q, size - 1, window=window)


def test_what_a_window_hides_sets_no_maximum(make_cache, queries) -> None:
    """A key that would take all of the softmax, one token before the window, in its first tile."""
    cache, q = make_cache(64, "f16", "f16", 2, 40), queries(1, 8, 64)
    giant = 1000 * q[:, ::4]  # of the first query head of each KV head
    append_kv(giant, np.zeros_like(giant), cache.segments, cache.layout, 19)
    for window in (20, 21):
        _check(cache, q, 39, window=window)


@pytest.mark.parametrize(
    ("head_dim", "k", "v", "heads", "kv_heads"), [COMBINATIONS[i] for i in (0, 1, 3)]
)
def test_chunk(make_cache, queries, head_dim, k, v, heads, kv_heads) -> None:
    cache = make_cache(head_dim, k, v, kv_heads, 1100)
    for start, n in ((0, 2), (0, 133), (1000, 37), (1021, 5)):
        q = queries(n, heads, head_dim)
        _check(cache, q, start)
        _check(cache, q, start, window=20, softcap=3.0)
    _check(cache, queries(133, heads, head_dim), 967, window=131)


@pytest.mark.parametrize("n", [1, 37])
def test_a_sink_takes_its_share(make_cache, queries, n: int) -> None:
    """Below all scores, among them, and above all."""
    cache, q = make_cache(64, "f16", "f16", 1, 1100), queries(n, 8, 64)
    for logits in (np.linspace(-2, 2, 8), np.full(8, -1e4), np.full(8, 50.0)):
        _check(cache, q, 1000, sinks=logits.astype(np.float32), window=900)


def test_log_sums_include_the_sink(make_cache, queries) -> None:
    cache, q = make_cache(64, "f16", "f16", 1, 300), queries(9, 8, 64)
    logits, plain, sunk = np.linspace(-3, 9, 8, dtype=np.float32), *np.empty((2, 9, 8), np.float32)
    cache.attend(q, 290, log_sums=plain)
    cache.attend(q, 290, log_sums=sunk, sinks=logits)
    np.testing.assert_allclose(sunk, np.logaddexp(plain, logits), atol=1e-5)
    with pytest.raises(OpsError, match=r"sinks: logits is float32 \(7,\)"):
        cache.attend(q, 290, sinks=logits[:7].copy())


def test_chunk_of_512(make_cache, queries) -> None:
    cache = make_cache(64, "f16", "f16", 2, 1200)
    _check(cache, queries(512, 8, 64), 600)


@pytest.mark.parametrize("index", [0, 1])
def test_cached_equals_uncached(make_cache, queries, index: int) -> None:
    """Tokens attended one by one give what one chunk gives, to rounding."""
    head_dim, k, v, heads, kv_heads = COMBINATIONS[index]
    cache, q = make_cache(head_dim, k, v, kv_heads, 1100), queries(77, heads, head_dim)
    chunk = cache.attend(q, 1000, window=900)
    single = [cache.attend(q[t : t + 1], 1000 + t, window=900) for t in range(77)]
    np.testing.assert_allclose(chunk, np.concatenate(single), atol=TOLERANCE)


def test_one_thread_gives_the_same_bits(make_cache, queries) -> None:
    cache = make_cache(64, "f16", "f16", 2, 2050)
    one, rows = queries(1, 8, 64), queries(133, 8, 64)
    results = []
    for _ in with_threads(1, 2):
        again = make_cache(64, "f16", "f16", 2, 2050)
        np.testing.assert_array_equal(again.memory, cache.memory)
        results.append((cache.attend(one, 2049), cache.attend(rows, 1917)))
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


def test_large_scores_do_not_overflow(make_cache, queries) -> None:
    """Scores in the thousands: the softmax is one-hot, in both kernels."""
    cache = make_cache(64, "f16", "f16", 2, 300)
    for n in (1, 4):
        q = queries(n, 8, 64)
        _check(cache, q, 300 - n, scale=100.0)


def test_scratch_follows_the_number_of_threads(make_cache, queries) -> None:
    cache = make_cache(64, "f16", "f16", 2, 600)  # enough for all threads to work
    scratch = AttentionScratch(8, 2, cache.layout, max_rows=1, n_ctx=600)
    scratch.ready(threads.n_threads() + 2)
    q = queries(1, 8, 64)
    out = np.empty_like(q)
    for last in (19, 599):
        attention(q, cache.segments, last, out, softmax=Softmax(0.125), scratch=scratch)
        np.testing.assert_array_equal(out, cache.attend(q, last))


def test_refuses_in_words(make_cache, queries) -> None:
    cache, q = make_cache(64, "f16", "f16", 2, 20), queries(1, 8, 64)
    scratch = AttentionScratch(8, 2, cache.layout, max_rows=4, n_ctx=20)

    def call(q, start=19, window=None) -> None:
        attention(
            q, cache.segments, start, np.empty_like(q), softmax=Softmax(1.0), window=window,
            scratch=scratch,
        )  # fmt: skip

    for words, bad in {
        "outside": {"q": q, "start": 20},
        r"q is float32 \(1, 4, 64\)": {"q": q[:, :4].copy()},
        "float64": {"q": q.astype(np.float64)},
        "window": {"q": q, "window": 0},
        "at most 4": {"q": queries(5, 8, 64), "start": 0},
    }.items():
        with pytest.raises(OpsError, match=words):
            call(**bad)
    with pytest.raises(OpsError, match="evenly"):
        AttentionScratch(8, 3, cache.layout)
