"""Products of queries with q8_0 keys, which AVX-512 sums as integers, are those of floats."""

import numpy as np
import pytest

from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.select import ExactScratch, products

N = SEGMENT + 50


def _products(cache, q: np.ndarray) -> np.ndarray:  # type: ignore[no-untyped-def]
    n_kv_heads, heads = cache.k.shape[1], q.shape[1]
    out = np.full((heads, N), 7, np.float32)
    products(q, cache.segments, N, out, scratch=ExactScratch(heads, n_kv_heads, N, 1, cache.layout))
    return out


@pytest.mark.parametrize(
    ("head_dim", "group"), [(8, 1), (64, 4), (80, 8), (96, 3), (128, 1), (256, 4)]
)
def test_as_exact_as_float32(make_cache, head_dim: int, group: int) -> None:
    """Queries with elements of very different sizes, and one that is at its largest everywhere."""
    cache, rng = make_cache(head_dim, "q8_0", "q8_0", 2, N), np.random.default_rng(head_dim)
    q = rng.standard_normal((1, 2 * group, head_dim)) * 10.0 ** rng.integers(-4, 5, head_dim)
    q[0, -1] = np.where(rng.random(head_dim) < 0.5, 0.1, -0.1)
    q = q.astype(np.float32)
    keys = cache.stored()[0].astype(np.float64)
    for h, got in enumerate(_products(cache, q)):
        head_keys, line = keys[:, h // group], q[0, h].astype(np.float64)
        sizes = np.linalg.norm(head_keys, axis=1) * np.linalg.norm(line)
        np.testing.assert_array_less(np.abs(got - head_keys @ line) / sizes, 3e-7)  # 2.5 * 2 ** -23


def test_queries_without_a_size(make_cache) -> None:
    """Zeros give zeros; what is not finite gives NaN, in no other head; great ones do not."""
    cache = make_cache(64, "q8_0", "q8_0", 1, N)
    q = np.ones((1, 4, 64), np.float32)
    q[0, 0], q[0, 1, 5], q[0, 2, 63] = 0, np.nan, np.inf
    got, want = _products(cache, q), cache.stored()[0][:, 0].sum(1)
    assert not got[0].any()
    assert not np.isfinite(got[1:3]).any()
    np.testing.assert_allclose(got[3], want, atol=2e-5)
    q[:] = 2.0**122  # whose sum is no float32
    np.testing.assert_allclose(_products(cache, q)[0] * 2.0**-122, want, atol=2e-5)
