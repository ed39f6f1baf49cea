"""What this machine gives: cost of a parallel region, read bandwidth, speed of a matvec.

Figures are the best of several runs: other programs only ever make them worse.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import prange

from . import threads
from .cache import jit
from .simd import load_i64, prefetch_l1, set_i64, store

BUFFER = 256 << 20  # beyond the caches of nearly all machines


@jit(parallel=True)
def _region_kernel(out, n_parts):
    for i in prange(n_parts):
        out[i * 16] += 1


@jit(parallel=True)
def _read_kernel(buffer, out, n_parts):
    """Every byte read once: 64-bit exclusive or of each part, 8 lanes to out[part * 64 bytes]."""
    steps = buffer.size // 256
    for part in prange(n_parts):
        start, stop = steps * part // n_parts * 256, steps * (part + 1) // n_parts * 256
        a = b = c = d = set_i64(0)
        for i in range(start, stop, 256):
            prefetch_l1(buffer, i + 4096)  # hardware prefetchers stop at the end of a page
            a, b = a ^ load_i64(buffer, i), b ^ load_i64(buffer, i + 64)
            c, d = c ^ load_i64(buffer, i + 128), d ^ load_i64(buffer, i + 192)
        store(out, part * 64, (a ^ b) ^ (c ^ d))


def best_seconds(run: Callable[[], Any], n_runs: int = 7) -> float:
    """The shortest of n_runs runs, after one that is not counted."""
    run()
    times = []
    for _ in range(n_runs):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def region_microseconds() -> float:
    """Microseconds that a parallel region costs, called from Python."""
    threads.start()
    n = threads.n_threads()
    out, n_calls = np.zeros(16 * n, np.int64), 50

    def run() -> None:
        for _ in range(n_calls):
            _region_kernel(out, n)

    return best_seconds(run) / n_calls * 1e6


def read_bytes(buffer: Any, n_threads: int) -> Any:
    """Exclusive or of the buffer's 64-bit words, [8] (word i belongs to lane i % 8)."""
    out = np.zeros((n_threads, 8), np.int64)
    _read_kernel(buffer, out, n_threads)
    return np.bitwise_xor.reduce(out)


def roofline(n_bytes: int = BUFFER) -> Iterator[tuple[int, float]]:
    """(threads, bytes per second that they read from memory) for 1 thread to all."""
    most = threads.n_threads()
    # Untouched zeros are one page that stays in the cache: write something everywhere.
    buffer = np.full(n_bytes // 256 * 256, 1, np.uint8)
    try:
        for n in range(1, most + 1):
            threads.set_threads(n)
            yield n, n_bytes / best_seconds(lambda n=n: read_bytes(buffer, n))  # type: ignore[misc]
    finally:
        threads.set_threads(most)


def matvec(type_name: str, n_bytes: int = BUFFER) -> float:
    """Bytes of weights of one type per second, in products with one token, all threads."""
    from .linear import Activations, Weight, linear
    from .types import QUANT_TYPES, row_bytes

    n_cols = 4096
    quant_type = QUANT_TYPES[type_name]
    n_rows = n_bytes // row_bytes(quant_type, n_cols) // 64 * 64
    # Bytes of ones are small finite scales in every type.
    data = np.full((n_rows, row_bytes(quant_type, n_cols)), 1, np.uint8)
    weight = Weight.prepare(quant_type, data, n_cols, "roofline")
    act, out = Activations(1, n_cols), np.empty((1, n_rows), np.float32)
    x = np.ones((1, n_cols), np.float32)
    return data.nbytes / best_seconds(lambda: linear(act.set(x), weight, out))
