"""Kernels with one number of threads after the other."""

from collections.abc import Iterator

import pytest

from kvarn.jit import threads


def with_threads(*counts: int) -> Iterator[int]:
    """Each number, while kernels of this thread run with so many; then they have as many as before.

    Skips where there are fewer.
    """
    if max(counts) > threads.max_threads():
        pytest.skip("one thread is all there is")
    before = threads.n_threads()
    try:
        for n in counts:
            threads.set_threads(n)
            yield n
    finally:
        threads.set_threads(before)
