"""Prefetching the index of the next segment while a segment is scanned."""

from ...jit.cached import jit
from ...jit.simd import prefetch_l1


@jit
def prefetch_lines(place, first, n_bytes):
    """Prefetch n_bytes from address place + first on into L1, one request for each cache line."""
    for line in range(first, first + n_bytes, 64):
        prefetch_l1(place, line)
