"""The largest products, against a sort of all: keys of small whole numbers make them exact."""

import numpy as np
import pytest

from kvarn.ops.attention.api import append_kv
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.select import largest_reference
from kvarn.ops.select import ExactScratch, Lists, Range, Wanted, largest, products

SEED = 11


def _whole(cache, rng) -> None:
    """Keys of whole numbers from -3 to 3, which f16 and q8_0 with a largest of 127/32 hold."""
    cache.k[:] = rng.integers(-3, 4, cache.k.shape)
    append_kv(cache.k, cache.v, cache.segments, cache.layout, 0)


@pytest.mark.parametrize(("heads", "n_kv_heads"), [(8, 2), (5, 1), (3, 3)])
def test_the_largest_are_those_of_a_sort(make_cache, heads: int, n_kv_heads: int) -> None:
    cache, rng = make_cache(64, "f16", "f16", n_kv_heads, 6100), np.random.default_rng(heads)
    _whole(cache, rng)
    q = rng.integers(-2, 3, (1, heads, 64)).astype(np.float32)
    scores = np.stack([cache.k[:, h * n_kv_heads // heads] @ q[0, h] for h in range(heads)])
    for first, last, stop, k in ((0, 1, 1, 1), (5, 1030, 1031, 40), (4, 6000, 6100, 700)):
        index, counts = np.zeros((n_kv_heads, stop), np.uint32), np.zeros(n_kv_heads, np.int64)
        scratch = ExactScratch(heads, n_kv_heads, stop, k, cache.layout)
        largest(
            q, cache.segments, Range(first, last, stop), Wanted(k, k, SEED),
            Lists(index, counts), scratch=scratch,
        )  # fmt: skip
        want = largest_reference(scores[:, :stop], n_kv_heads, (first, last, stop), k, SEED)
        for j in range(n_kv_heads):
            np.testing.assert_array_equal(index[j, : counts[j]], want[j])


@pytest.mark.parametrize("kind", ["f16", "q4_0"])
def test_products(make_cache, queries, kind: str) -> None:
    cache, q = make_cache(80, kind, kind, 2, 1300), queries(1, 4, 80)
    out = np.full((4, 1300), np.nan, np.float32)
    products(q, cache.segments, 1300, out, scratch=ExactScratch(4, 2, 1300, 1, cache.layout))
    keys, _ = cache.stored()
    want = np.stack([keys[:, h // 2] @ q[0, h] for h in range(4)])
    np.testing.assert_allclose(out, want, atol=2e-5)


def test_refuses_in_words(make_cache, queries) -> None:
    cache = make_cache(64, "f16", "f16", 1, 20)
    scratch = ExactScratch(2, 1, 2000, 5, cache.layout)
    index, counts = np.zeros((1, 2000), np.uint32), np.zeros(1, np.int64)

    def call(q, among, k=5) -> None:
        lists = Lists(index, counts)
        largest(q, cache.segments, among, Wanted(k, k, 0), lists, scratch=scratch)

    for words, bad in {
        "q is": (queries(1, 3, 64), Range(0, 20, 20)),
        "token 1499 lies outside": (queries(1, 2, 64), Range(0, 1500, 1500)),
        "cannot choose 6": (queries(1, 2, 64), Range(0, 20, 20), 6),
    }.items():
        with pytest.raises(OpsError, match=words):
            call(*bad)
