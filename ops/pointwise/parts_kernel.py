"""The kernel of `copy_part`."""

from ...jit.launch.define import Share, bounds, kernel
from ...jit.simd import load_f32, load_one_f32, store


@kernel
def copy_kernel(
    share: Share,
    source: int,
    target: int,
    n_i: int,
    n_j: int,
    n: int,
    source_bytes: int,
    to_i: int,
    to_j: int,
):
    """Copy n floats of each row (i, j): rows of `source` follow each other at `source_bytes`.

    source, target: addresses; to_i, to_j: bytes in `target` from one i, and from one j, to the
    next.
    """
    first, stop = bounds(share, n_i * n_j)
    whole = n // 16 * 16
    for row in range(first, stop):
        x = source + row * source_bytes
        out = target + row // n_j * to_i + row % n_j * to_j
        for c in range(0, whole, 16):
            store(out, 4 * c, load_f32(x, 4 * c))
        for c in range(whole, n):
            store(out, 4 * c, load_one_f32(x, 4 * c))
