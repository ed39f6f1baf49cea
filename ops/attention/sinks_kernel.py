"""The kernel of attention sinks."""

import math

import numpy as np

from ...jit.launch.define import Share, bounds, kernel
from ...jit.simd import load_one_f32, store


@kernel
def sinks_kernel(
    share: Share, out: int, masses: int, sinks: int, n_rows: int, n_heads: int, n: int
):
    """See `add_sinks`: addresses of out (n_rows, n_heads, n), masses and the heads' logits."""
    first, stop = bounds(share, n_rows * n_heads)
    for i in range(first, stop):
        m, total = load_one_f32(masses, 8 * i), load_one_f32(masses, 8 * i + 4)
        sink = load_one_f32(sinks, 4 * (i % n_heads))
        most = max(m, sink)
        kept = total * np.float32(math.exp(m - most))
        whole = kept + np.float32(math.exp(sink - most))
        store(masses, 8 * i, most)
        store(masses, 8 * i + 4, whole)
        factor = kept / whole
        for c in range(n):
            place = 4 * (i * n + c)
            store(out, place, np.float32(load_one_f32(out, place) * factor))
