"""Measures this machine: cost of a parallel region, read bandwidth, speed of the kernels.

Most figures are the best of several runs, as other programs only make them worse; the others say
so.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import prange
from numba.extending import intrinsic

from ..jit import threads
from ..jit.arena import Arena
from ..jit.cached import jit
from ..jit.launch import LazyKernel
from ..jit.launch.define import Share, kernel
from ..jit.simd import (
    VARIANT,
    emit_dot_u7s,
    emit_dot_us,
    load_i64,
    prefetch_l1,
    set_i8,
    set_i32,
    set_i64,
    store,
)
from .attention import SEGMENT, TileLayout
from .linear import Activations, Weight, linear
from .linear.formats.pieces import X86, pinned
from .types import QUANT_TYPES, row_bytes

BUFFER = 256 << 20  # beyond the caches of nearly all machines
COLUMNS = 4096


@jit(parallel=True)
def _region_kernel(out, n_parts):
    for i in prange(n_parts):
        out[i * 16] += 1


@kernel
def empty_kernel(share: Share):
    """Replaces every kernel when only the cost of calls is measured."""


@jit(parallel=True)
def _read_kernel(buffer, out, n_parts):
    """Read every byte once: exclusive or of each part's 64-bit words, 8 lanes to out[part]."""
    steps = buffer.size // 256
    for part in prange(n_parts):
        start, stop = steps * part // n_parts * 256, steps * (part + 1) // n_parts * 256
        a = b = c = d = set_i64(0)
        for i in range(start, stop, 256):
            for line in range(0, 256, 64):  # hardware prefetchers stop at the end of a page
                prefetch_l1(buffer, i + 4096 + line)
            a, b = a ^ load_i64(buffer, i), b ^ load_i64(buffer, i + 64)
            c, d = c ^ load_i64(buffer, i + 128), d ^ load_i64(buffer, i + 192)
        store(out, part * 64, (a ^ b) ^ (c ^ d))


@intrinsic
def _dot_pinned(typingctx, acc, a, x):
    """acc + a by x, in x86's registers: LLVM can see neither constant operands nor a sum."""

    def codegen(ctx, b, sig, vals):
        emit = emit_dot_us if VARIANT == "avx512" else emit_dot_u7s
        return emit(b, *(pinned(b, v) if X86 else v for v in vals))

    return acc(acc, a, x), codegen


@jit(parallel=True)
def _dot_kernel(out, n_dots, n_parts):
    """n_dots dot products of four bytes onto each lane of 8 sums, in each part."""
    for part in prange(n_parts):
        x, one = set_i8(part), set_i8(1)
        a = b = c = d = e = f = g = h = set_i32(0)
        for _ in range(n_dots):
            a, b = _dot_pinned(a, one, x), _dot_pinned(b, one, x)
            c, d = _dot_pinned(c, one, x), _dot_pinned(d, one, x)
            e, f = _dot_pinned(e, one, x), _dot_pinned(f, one, x)
            g, h = _dot_pinned(g, one, x), _dot_pinned(h, one, x)
        store(out, part * 64, ((a + b) + (c + d)) + ((e + f) + (g + h)))


def timed(run: Callable[[], Any], n_runs: int) -> list[float]:
    """Seconds of each of n_runs runs, after one that is not counted."""
    run()
    times = []
    for _ in range(n_runs):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return times


def best_seconds(run: Callable[[], Any], n_runs: int = 7) -> float:
    """The shortest of n_runs runs, after one that is not counted."""
    return min(timed(run, n_runs))


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


def read_rate(n_bytes: int = BUFFER, n_runs: int = 9) -> float:
    """Bytes per second that all threads read from memory: the median of n_runs.

    For comparison with other medians measured at the same time; `roofline` gives the best.
    """
    buffer, n = np.full(n_bytes // 256 * 256, 1, np.uint8), threads.n_threads()
    times = timed(lambda: read_bytes(buffer, n), n_runs)
    return buffer.nbytes / statistics.median(times)


@contextmanager
def empty_kernels() -> Iterator[None]:
    """In the block, kernels do nothing when they run or are recorded: only the cost of calls
    remains.

    For a process that only measures: graphs recorded in the block never do anything.
    """
    original = LazyKernel.address
    LazyKernel.address = property(lambda self: empty_kernel.address)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        LazyKernel.address = original  # type: ignore[method-assign]


def matvec(type_name: str, n_bytes: int = BUFFER) -> float:
    """Bytes of weights of one type per second, in products with one token, all threads."""
    weight = _weight(type_name, n_bytes)
    return weight.n_bytes / best_seconds(_product(weight, 1))


def dot_rate(n_dots: int = 1 << 20, n_runs: int = 7) -> float:
    """Operations per second of int8 dot products in registers, all threads: the CPU's limit."""
    n = threads.n_threads()
    out = np.zeros((n, 16), np.int32)
    seconds = best_seconds(lambda: _dot_kernel(out, n_dots, n), n_runs)
    return 2 * 4 * 16 * 8 * n_dots * n / seconds


def matmul(type_name: str, n_tokens: int = 512, n_rows: int = 4096) -> tuple[float, float]:
    """Operations (a product and a sum are two) per second in products with many tokens, and the
    share of `dot_rate` that this is: medians of runs that alternate."""
    weight = _weight(type_name, n_rows * row_bytes(QUANT_TYPES[type_name], COLUMNS))
    run = _product(weight, n_tokens)
    pairs = [(timed(run, 1)[0], dot_rate(n_runs=1)) for _ in range(5)]
    rates = [2 * n_tokens * weight.n_rows * COLUMNS / seconds for seconds, _ in pairs]
    shares = [rate / peak for rate, (_, peak) in zip(rates, pairs)]
    return statistics.median(rates), statistics.median(shares)


def _weight(type_name: str, n_bytes: int) -> Weight:
    """A matrix of about n_bytes, with rows of COLUMNS weights."""
    quant_type = QUANT_TYPES[type_name]
    n_rows = max(64, n_bytes // row_bytes(quant_type, COLUMNS) // 64 * 64)
    # Bytes of ones are small finite scales in every type.
    data = np.full((n_rows, row_bytes(quant_type, COLUMNS)), 1, np.uint8)
    return Weight.prepare(quant_type, data, COLUMNS, "roofline", Arena())


def _product(weight: Weight, n_tokens: int) -> Callable[[], None]:
    act, x = Activations(n_tokens, COLUMNS), np.ones((n_tokens, COLUMNS), np.float32)
    out = np.empty((n_tokens, weight.n_rows), np.float32)
    return lambda: linear(act.set(x), weight, out)


def attention(kv_type: str, n_tokens: int = 32_768) -> float:
    """Bytes of K and V per second, in attention of one token: 8 KV heads of 64, 4 queries each."""
    from .attention.api import AttentionScratch, append_kv
    from .attention.api import attention as attend
    from .attention.softmax import Softmax

    n_kv_heads, head_dim = 8, 64
    layout = TileLayout(head_dim, kv_type, kv_type)
    scratch = AttentionScratch(4 * n_kv_heads, n_kv_heads, layout, 1, n_tokens)
    n_segments = -(-n_tokens // SEGMENT)
    memory = np.zeros((n_segments, layout.segment_bytes(n_kv_heads)), np.uint8)
    segments = memory.ctypes.data + memory.strides[0] * np.arange(n_segments, dtype=np.int64)
    kv = np.ones((n_tokens, n_kv_heads, head_dim), np.float32)
    append_kv(kv, kv, segments, layout, 0)
    q = np.ones((1, 4 * n_kv_heads, head_dim), np.float32)
    out = np.empty_like(q)

    def run() -> None:
        attend(q, segments, n_tokens - 1, out, softmax=Softmax(0.125), scratch=scratch)

    return memory.nbytes / SEGMENT / n_segments * n_tokens / best_seconds(run)
