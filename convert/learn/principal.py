"""Where encoders start: random rotations of the directions in which keys differ for queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ops.arrays import F32, F64

_RIDGE = 1e-4
"""What is added to the moments of queries, as a share of their mean square: queries may not span
the space."""


class Moments:
    """Sums over the keys and queries of one layer, J KV heads of E dimensions."""

    def __init__(self, n_kv_heads: int, head_dim: int) -> None:
        self.n_keys = self.n_queries = 0
        self._key_sum: F64 = np.zeros((n_kv_heads, head_dim))
        self._keys: F64 = np.zeros((n_kv_heads, head_dim, head_dim))
        self._queries: F64 = np.zeros((n_kv_heads, head_dim, head_dim))

    def add(self, keys: F32, q: F32) -> None:
        """Count keys float32 (T, J, E) and queries float32 (T, H, E), those of a KV head as one."""
        n_tokens, n_kv_heads, head_dim = keys.shape
        of_heads = q.reshape(n_tokens, n_kv_heads, -1, head_dim).swapaxes(0, 1)
        rows, columns = of_heads.reshape(n_kv_heads, -1, head_dim), keys.swapaxes(0, 1)
        self._key_sum += columns.sum(1, dtype=np.float64)
        self._keys += columns.mT @ columns
        self._queries += rows.mT @ rows
        self.n_keys += n_tokens
        self.n_queries += rows.shape[1]

    def means(self) -> tuple[F64, F64, F64]:
        """The mean key (J, E), the covariance of keys (J, E, E), and the mean of q qᵀ (J, E, E)."""
        mean = self._key_sum / max(1, self.n_keys)
        covariance = self._keys / max(1, self.n_keys) - mean[:, :, None] * mean[:, None]
        return mean, covariance, self._queries / max(1, self.n_queries)


@dataclass(frozen=True)
class Maps:
    """Linear encoders, one for each KV head: y_q = q · queries, y_k = k · keys + bias.

    queries, keys float32 (J, E, bits); bias float32 (J, bits).
    """

    queries: F32
    keys: F32
    bias: F32


def principal_maps(moments: Moments, bits: int, rng: np.random.Generator) -> Maps:
    """Maps whose signs are signatures that need little training.

    With the mean key μ, the covariance C of keys and the mean S of q qᵀ, S½ C S½ = U Λ Uᵀ. The
    r = min(bits / 2, E) largest of Λ are kept, and

        y_q = q · S^-½ U Λ^¼ R,    y_k = (k - μ) · S^½ U Λ^-¼ R

    where R (r, bits) is made of random rotations. Before R, both sides have the same variances Λ^½,
    and with r = E their product is q · (k - μ), which ranks keys as q · k does.
    """
    mean, covariance, second = moments.means()
    n_kv_heads, width = mean.shape
    rank = min(bits // 2, width)
    turns = [
        np.linalg.qr(rng.standard_normal((n_kv_heads, rank, rank)))[0] for _ in range(0, bits, rank)
    ]
    turn = np.concatenate(turns, 2)[:, :, :bits]
    size = np.maximum(np.trace(second, axis1=1, axis2=2) / width, 1e-20)
    second = second + _RIDGE * size[:, None, None] * np.eye(width)
    root, inverse = _power(second, 0.5), _power(second, -0.5)
    values, vectors = np.linalg.eigh(root @ covariance @ root)
    values, vectors = values[:, : -rank - 1 : -1], vectors[:, :, : -rank - 1 : -1]
    values = np.maximum(values, 1e-12 * np.maximum(values[:, :1], 1e-20))[:, None]
    keys = root @ (vectors * values**-0.25) @ turn
    queries = inverse @ (vectors * values**0.25) @ turn
    bias = -(mean[:, None] @ keys)[:, 0]
    return Maps(queries.astype(np.float32), keys.astype(np.float32), bias.astype(np.float32))


def _power(matrices: F64, exponent: float) -> F64:
    """A power of symmetric positive matrices (J, E, E)."""
    values, vectors = np.linalg.eigh(matrices)
    powers: F64 = (vectors * values[:, None] ** exponent) @ vectors.mT
    return powers
