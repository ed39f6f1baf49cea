"""The kernel that merges attention to parts of the tokens."""

import math

import numpy as np

from ....jit.launch.define import Share, bounds, kernel
from .arguments import Parts


@kernel
def merge_parts_kernel(share: Share, parts: Parts):
    """See `merge_parts`. Reads the outputs of all parts once."""
    outs, masses, sinks = parts.outs, parts.masses, parts.sinks
    n_parts, n_rows, n_heads, n = outs.shape
    first, stop = bounds(share, n_rows * n_heads)
    for i in range(first, stop):
        t, h = i // n_heads, i % n_heads
        most = masses[0, t, h, 0]
        for p in range(1, n_parts):
            most = max(most, masses[p, t, h, 0])
        total = 0.0
        for p in range(n_parts):
            below = np.float64(masses[p, t, h, 0]) - np.float64(most)
            weight = np.float64(masses[p, t, h, 1]) * math.exp(below)
            parts.weights[i, p] = weight
            total += weight
        if len(sinks) > 0:
            total += math.exp(np.float64(sinks[h]) - np.float64(most))
        for p in range(n_parts):
            parts.weights[i, p] /= total
        for c in range(n):
            x = 0.0
            for p in range(n_parts):
                x += parts.weights[i, p] * np.float64(outs[p, t, h, c])
            parts.out[t, h, c] = np.float32(x)
