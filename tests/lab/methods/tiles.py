"""Quest's formula in NumPy."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def tile_bounds_reference(q: Floats, keys: Floats, size: int) -> NDArray[np.float64]:
    """sum over d of max(q_d least_d, q_d greatest_d) over each run of `size` keys (n, tiles).

    q (n, E); keys (S, E), S a multiple of `size`.
    """
    tiles = keys.astype(np.float64).reshape(-1, size, keys.shape[1])
    least, greatest = tiles.min(1), tiles.max(1)
    out: NDArray[np.float64] = np.maximum(q[:, None] * least, q[:, None] * greatest).sum(2)
    return out


def highest_tiles(q, keys, n_kv_heads: int, first: int, last: int, stop: int) -> list:
    """The two tiles with the highest bounds of each query head: 32 of at least 20 tokens."""
    whole = np.concatenate([keys, np.repeat(keys[-1:], -stop % 16, 0)])
    lists = [{*range(first), *range(last, stop)} for _ in range(n_kv_heads)]
    for h in range(4):
        bounds = tile_bounds_reference(q[0, h : h + 1], whole[:, h // 2], 16)[0, : -(-last // 16)]
        for tile in np.argsort(-bounds)[:2]:
            lists[h // 2] |= {*range(max(first, 16 * tile), min(last, 16 * tile + 16))}
    return [np.array(sorted(tokens)) for tokens in lists]
