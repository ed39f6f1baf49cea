"""Choosing tokens in plain NumPy: signatures, distances, exact top-k, the list of a group."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def network_reference(
    x: Floats, weights: NDArray[np.float32], widths: tuple[int, ...]
) -> NDArray[np.float64]:
    """y = W_n silu(… silu(W_1 x + b_1) …) + b_n of the rows of x (n, E), float64 (n, bits)."""
    y, at = x.astype(np.float64), 0
    for layer, (n_in, n_out) in enumerate(pairwise(widths)):
        matrix = weights[at : at + n_in * n_out].reshape(n_in, n_out).astype(np.float64)
        at += n_in * n_out
        y = y @ matrix + weights[at : at + n_out]
        at += n_out
        if layer + 2 < len(widths):
            y = y / (1.0 + np.exp(-y))
    return y


def pack_bits(y: Floats) -> NDArray[np.uint64]:
    """Bit i = (y[:, i] > 0), uint64 (n,)."""
    powers = np.uint64(1) << np.arange(y.shape[1], dtype=np.uint64)
    return np.where(y > 0, powers, np.uint64(0)).sum(1, dtype=np.uint64)


def position_hash_reference(positions: NDArray[np.integer], seed: int) -> NDArray[np.uint32]:
    """MurmurHash3's finaliser over position ^ seed."""
    x = positions.astype(np.uint32) ^ np.uint32(seed)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def best_reference(
    costs: NDArray[np.generic], first: int, k: int, seed: int, taken: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """Positions (from `first` on) of the k least costs, equal ones by `position_hash`, of those
    that are not taken."""
    positions, costs = first + np.flatnonzero(~taken), costs[~taken]
    if k < len(costs):  # others need no place in the order
        among = ~(costs > np.partition(costs, k)[k])
        positions, costs = positions[among], costs[among]
    order = np.lexsort((position_hash_reference(positions, seed), costs))
    return positions[order[:k]]


def lots_reference(positions: NDArray[np.integer], n: int, seed: int) -> NDArray[np.uint32]:
    """A number from 0 to n-1 for each position: at equal distance, the lowest come first."""
    h = position_hash_reference(positions // 1024, seed)
    pattern = (h >> (positions // 64 % 16 * 2).astype(np.uint32)) % n
    return (37 * positions % 64 * n // 64).astype(np.uint32) ^ pattern


def nearest_reference(
    queries: NDArray[np.uint64],
    signatures: NDArray[np.uint64],
    bits: int,
    among: tuple[int, int, int],
    k: int,
    seed: int,
    taken: NDArray[np.bool_] | None = None,
) -> list[NDArray[np.intp]]:
    """For each KV head: tokens 0 .. first-1, the union of each query's k nearest of
    first .. last-1, and last .. stop-1. queries (J, G) and signatures (J, S) of `bits` bits.

    among: (first, last, stop). taken (J, S): tokens of first .. last-1 that are listed, too, and do
    not compete."""
    first, last, _ = among
    n_lots = 128 // bits
    lots = lots_reference(np.arange(first, last), n_lots, seed)
    distances = np.bitwise_count(signatures[:, None, first:last] ^ queries[:, :, None])
    return _lists(n_lots * distances.astype(int) + lots, among, k, seed, taken)


def largest_reference(
    scores: Floats,
    n_kv_heads: int,
    among: tuple[int, int, int],
    k: int,
    seed: int,
    taken: NDArray[np.bool_] | None = None,
) -> list[NDArray[np.intp]]:
    """As `nearest_reference`, by the largest of the scores (H, S) of each query head."""
    costs = -scores.reshape(n_kv_heads, -1, scores.shape[1])[..., among[0] : among[1]]
    return _lists(costs, among, k, seed, taken)


def reranked_reference(
    queries: NDArray[np.uint64],
    signatures: NDArray[np.uint64],
    bits: int,
    scores: Floats,
    among: tuple[int, int, int],
    wanted: tuple[int, int, int],
    taken: NDArray[np.bool_] | None = None,
) -> list[NDArray[np.intp]]:
    """As `nearest_reference` for each `n_candidates`, of which each query takes its k best scores.

    scores (H, S); among (first, last, stop); wanted (k, n_candidates, seed). The 4, 3, 2 or 1 query
    heads of a KV head that share a pass, as many as divide the group, share their candidates.
    """
    (first, last, stop), (k, n_candidates, seed) = among, wanted
    n_kv_heads, group = queries.shape
    together = next(n for n in (4, 3, 2, 1) if group % n == 0)
    taken = np.zeros((n_kv_heads, stop), np.bool_) if taken is None else taken[:, :stop]
    costs = np.full((n_kv_heads, group, last - first), np.inf)
    for g in range(0, group, together):
        heads = slice(g, g + together)
        near = nearest_reference(
            queries[:, heads], signatures, bits, among, n_candidates, seed, taken
        )
        for j, listed in enumerate(near):
            inside = listed[(listed >= first) & (listed < last)]
            of_pass = scores.reshape(n_kv_heads, group, -1)[j, heads]
            costs[j, heads][:, inside - first] = -of_pass[:, inside]
    return _lists(costs, among, k, seed, taken)


def _lists(
    costs: NDArray[np.generic],
    among: tuple[int, int, int],
    k: int,
    seed: int,
    taken: NDArray[np.bool_] | None,
) -> list[NDArray[np.intp]]:
    """For each KV head the list of tokens, by the costs (J, G, last - first) of its queries."""
    first, last, stop = among
    if taken is None:
        taken = np.zeros((len(costs), stop), np.bool_)
    lists = []
    for group, taken_of_head in zip(costs, taken[:, first:last]):
        best = [best_reference(c, first, k, seed, taken_of_head) for c in group]
        fixed = np.arange(first), first + np.flatnonzero(taken_of_head), np.arange(last, stop)
        lists.append(np.unique(np.concatenate([*fixed, *best])))
    return lists


def _padded(x: Floats, n: int) -> NDArray[np.float64]:
    return np.pad(x.astype(np.float64), ((0, 0), (0, n - x.shape[1])))


def sketch_reference(
    keys: Floats, rotation: Floats
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Signs (+-1) of y = R k and factors |k|^2 / sum |y|; keys (S, E), rotation (E', E')."""
    padded = _padded(keys, len(rotation))
    y = padded @ rotation
    total = np.abs(y).sum(1)
    return np.where(y > 0, 1.0, -1.0), (padded**2).sum(1) / np.where(total > 0, total, 1.0)


def estimates_reference(q: Floats, signs: Floats, factors: Floats, rotation: Floats) -> Floats:
    """Estimated q . k of each key for each row of q (n, E): (n, S), unbiased over rotations."""
    out: Floats = (_padded(q, len(rotation)) @ rotation @ signs.T) * factors
    return out


def draw_reference(
    q: Floats, keys: Floats, planes: Floats, bits: int, count: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """What q (H, E) draw of centred keys (n, E), and each -log u: (H, n) both.

    planes (K L, E), those of a table side by side. Drawn: the signs of the products with all K
    planes are the same in at least 2 of the L tables. Source: MagicPIG, equation 10.
    """
    above = [(x @ planes.T > 0).reshape(len(x), count, bits) for x in (q, keys)]
    same = np.stack([(above[1] == row).all(2).sum(1) for row in above[0]])
    norms = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(keys, axis=1)
    p = 1 - np.arccos(np.clip(q @ keys.T / norms, -1, 1)) / np.pi
    x = p**bits
    u = 1 - (1 - x) ** count - count * x * (1 - x) ** (count - 1)
    return same >= 2, -np.log(u)
