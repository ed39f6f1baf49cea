"""Where encoders start: the formula of `principal_maps`, in NumPy by another way."""

import numpy as np
import pytest

from kvarn.convert.learn.principal import Moments, principal_maps


def sample(n_kv_heads: int, group: int, width: int, n: int = 4000):
    """Keys (n, J, E) with a mean and unequal directions, and queries (n, H, E) of others."""
    rng = np.random.default_rng(1)
    mixing = rng.standard_normal((2, n_kv_heads, width, width)) * 0.7 ** np.arange(width)
    keys = rng.standard_normal((n, n_kv_heads, width)).swapaxes(0, 1) @ mixing[0].mT
    q = rng.standard_normal((n, n_kv_heads, group * width)).reshape(n, n_kv_heads, group, width)
    q = np.einsum("njge,jfe->njgf", q, mixing[1])
    keys = keys.swapaxes(0, 1) + 3 * rng.standard_normal((n_kv_heads, width))
    return keys.astype(np.float32), q.reshape(n, -1, width).astype(np.float32)


def moments_of(keys: np.ndarray, q: np.ndarray) -> Moments:
    moments = Moments(keys.shape[1], keys.shape[2])
    for first in range(0, len(keys), 512):
        moments.add(keys[first : first + 512], q[first : first + 512])
    return moments


def test_moments_are_those_of_all_tokens_and_of_the_heads_of_a_group() -> None:
    keys, q = sample(2, 3, 8)
    mean, covariance, second = moments_of(keys, q).means()
    for j in range(2):
        rows = q[:, 3 * j : 3 * j + 3].reshape(-1, 8).astype(np.float64)
        np.testing.assert_allclose(mean[j], keys[:, j].mean(0, dtype=np.float64), rtol=1e-5)
        want = np.cov(keys[:, j].T.astype(np.float64), bias=True)
        np.testing.assert_allclose(covariance[j], want, atol=1e-4 * np.abs(want).max())
        want = rows.T @ rows / len(rows)
        np.testing.assert_allclose(second[j], want, atol=1e-4 * np.abs(want).max())


def test_with_all_directions_the_product_of_both_sides_ranks_as_q_k() -> None:
    """Up to a factor and the ridge, it is q · (k - mean), rotated."""
    keys, q = sample(2, 2, 8)
    maps = principal_maps(moments_of(keys, q), 16, np.random.default_rng(0))
    for j in range(2):
        y_k = keys[:, j] @ maps.keys[j] + maps.bias[j]
        y_q = q[:, 2 * j] @ maps.queries[j]
        want = q[:100, 2 * j] @ (keys[:, j] - keys[:, j].mean(0)).T
        np.testing.assert_allclose(2 * want, y_q[:100] @ y_k.T, atol=0.01 * np.abs(want).max())
        np.testing.assert_allclose(y_k.mean(0), 0, atol=1e-3 * np.abs(y_k).max())


def test_the_directions_kept_are_those_in_which_products_differ_most() -> None:
    """The best low rank of S½ C½ by Eckart and Young, from an SVD: 4 of 8 directions."""
    keys, q = sample(1, 1, 8)
    maps = principal_maps(moments_of(keys, q), 8, np.random.default_rng(0))
    centred = (keys[:, 0] - keys[:, 0].mean(0)).astype(np.float64)
    rows = q[:, 0].astype(np.float64)
    left, right = (np.linalg.cholesky(x.T @ x / len(x)).T for x in (rows, centred))
    u, s, v = np.linalg.svd(left @ right.T)
    product = np.linalg.pinv(left) @ (u[:, :4] * s[:4]) @ v[:4] @ np.linalg.pinv(right).T
    got = (maps.queries[0] @ maps.keys[0].T).astype(np.float64) / 2  # two rotations of each
    error = left @ (got - product) @ right.T
    assert np.linalg.norm(error) < 0.02 * np.linalg.norm(s)


@pytest.mark.parametrize(("width", "bits"), [(8, 64), (80, 32), (256, 64)])
def test_any_width_and_keys_that_do_not_differ_give_numbers(width: int, bits: int) -> None:
    keys, q = sample(2, 2, width, 600)
    keys[:, 1] = keys[:1, 1]
    maps = principal_maps(moments_of(keys, q), bits, np.random.default_rng(0))
    assert maps.queries.shape == maps.keys.shape == (2, width, bits)
    assert all(np.isfinite(x).all() for x in (maps.queries, maps.keys, maps.bias))
