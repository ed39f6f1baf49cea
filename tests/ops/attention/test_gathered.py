"""Gathered attention against float64 NumPy over the listed tokens alone."""

import numpy as np
import pytest

from kvarn.ops.attention.decode.gathered import GatheredScratch, gathered_attention
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.attention import gathered_reference

from ...thread_counts import with_threads

TOLERANCE = 5e-6  # as dense attention
PLAIN = Softmax(0.2)


def _lists(rng, n_kv_heads: int, n_tokens: int, counts: list[int]) -> tuple:
    index = np.full((n_kv_heads, n_tokens), 0xFFFFFFFF, np.uint32)  # never read
    for j, n in enumerate(counts):
        index[j, :n] = np.sort(rng.choice(n_tokens, n, replace=False))
    return index, np.array(counts)


def _attend(cache, q, index, counts, softmax=PLAIN, **options):
    out = np.full_like(q, np.nan)
    scratch = GatheredScratch(q.shape[1], cache.n_kv_heads, cache.layout, index.shape[1])
    gathered_attention(
        q, index, counts, cache.segments, out, softmax=softmax, scratch=scratch, **options
    )
    return out


@pytest.mark.parametrize(
    ("head_dim", "k", "v", "heads", "kv_heads"),
    [
        (64, "f16", "f16", 8, 2),
        (96, "q8_0", "q4_0", 1, 1),
        (128, "q4_0", "q8_0", 6, 2),
        (80, "q4_0", "f16", 5, 1),
        (576, "q8_0", "q8_0", 3, 1),
    ],
)
def test_only_listed_tokens_count(make_cache, queries, head_dim, k, v, heads, kv_heads) -> None:
    cache, q = make_cache(head_dim, k, v, kv_heads, 2100), queries(1, heads, head_dim)
    rng = np.random.default_rng(3)
    for lengths in ([1, 17], [1025, 16], [15, 2050], [1024, 1]):
        index, counts = _lists(rng, kv_heads, 2100, lengths[:kv_heads])
        weights = rng.standard_normal((heads, 2100)).astype(np.float32)
        logits = rng.normal(0.0, 3.0, heads).astype(np.float32)
        capped = {"softmax": Softmax(0.2, softcap=2.0)}
        sunk = {"softmax": Softmax(0.2, sinks=logits)}
        for options in ({"softmax": PLAIN}, capped, capped | {"log_weights": weights}, sunk):
            got = _attend(cache, q, index, counts, **options)
            want = gathered_reference(q, *cache.stored(), index, counts, **options)
            assert np.abs(got - want).max() < TOLERANCE


def test_one_thread_gives_the_same_bits(make_cache, queries) -> None:
    cache, q = make_cache(64, "f16", "f16", 2, 2100), queries(1, 8, 64)
    index, counts = _lists(np.random.default_rng(1), 2, 2100, [1500, 700])
    results = []
    for _ in with_threads(1, 2):
        results.append(_attend(cache, q, index, counts))
    np.testing.assert_array_equal(*results)


def test_refuses_in_words(make_cache, queries) -> None:
    cache, q = make_cache(64, "f16", "f16", 2, 20), queries(1, 8, 64)
    index, counts = _lists(np.random.default_rng(1), 2, 20, [5, 6])
    for words, bad in {
        "q is": (queries(1, 4, 64), index, counts),
        "lists are int64": (q, index.astype(np.int64), counts),
        "0 to 6": (q, index, counts * [0, 1]),
        "5 to 21": (q, index, np.array([5, 21])),
    }.items():
        out = np.empty_like(bad[0])
        with pytest.raises(OpsError, match=words):
            gathered_attention(
                *bad,
                cache.segments,
                out,
                softmax=Softmax(1.0),
                scratch=GatheredScratch(8, 2, cache.layout, 20),
            )
