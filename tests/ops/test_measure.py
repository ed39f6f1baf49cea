"""What is measured is what is claimed: every byte is read, threads are put back."""

import numpy as np

from kvarn.jit import threads
from kvarn.jit.launch import record
from kvarn.ops import measure
from kvarn.ops.pointwise import scale


def test_every_byte_is_read():
    rng = np.random.default_rng(8)
    for n_bytes in (256, 256 * 5, 256 * 64):
        buffer = rng.integers(0, 256, n_bytes, dtype=np.uint8)
        expected = np.bitwise_xor.reduce(buffer.view(np.int64).reshape(-1, 8))
        for n_threads in (1, 2, 3):
            np.testing.assert_array_equal(measure.read_bytes(buffer, n_threads), expected)


def test_roofline_covers_all_threads_and_leaves_their_number():
    before = threads.n_threads()
    rates = dict(measure.roofline(n_bytes=1 << 20))
    assert list(rates) == list(range(1, before + 1))
    assert all(rate > 0 for rate in rates.values())
    assert threads.n_threads() == before


def test_every_kind_of_kernel_is_measured():
    assert measure.matvec("Q8_0", n_bytes=1 << 19) > 0
    assert min(measure.matmul("Q8_0", n_tokens=5, n_rows=64)) > 0
    assert measure.attention("f16", n_tokens=1500) > 0
    assert measure.read_rate(n_bytes=1 << 20, n_runs=3) > 0
    assert measure.region_microseconds() > 0


def test_dot_products_are_all_computed():
    n_parts, n_dots = 2, 1000
    out = np.zeros((n_parts, 16), np.int32)
    measure._dot_kernel(out, n_dots, n_parts)
    np.testing.assert_array_equal(out, np.repeat([[0], [8 * 4 * n_dots]], 16, axis=1))
    assert measure.dot_rate(n_dots=1000, n_runs=1) > 0


def test_empty_kernels_are_called_and_do_nothing():
    x = np.ones(100, np.float32)
    with measure.empty_kernels():
        scale(x, 2.0)
        graph = record(scale, x, 2.0)
    assert len(graph) == 1
    graph.run()
    assert (x == 1).all()
    scale(x, 2.0)
    assert (x == 2).all()


def test_best_of_the_runs_counts():
    pauses = iter([9.0, 5.0, 2.0, 3.0])
    clock = [0.0]

    def run():
        clock[0] += next(pauses)

    original = measure.time.perf_counter
    measure.time.perf_counter = lambda: clock[0]
    try:
        assert measure.best_seconds(run, n_runs=3) == 2.0
    finally:
        measure.time.perf_counter = original
