"""What is measured is what is claimed: every byte is read, threads are put back."""

import numpy as np

from kvarn.ops import measure, threads


def test_every_byte_is_read():
    rng = np.random.default_rng(8)
    for n_bytes in (256, 256 * 5, 256 * 64):
        buffer = rng.integers(0, 256, n_bytes, dtype=np.uint8)
        expected = np.bitwise_xor.reduce(buffer.view(np.int64).reshape(-1, 8))
        for n_threads in (1, 2, 3):
            np.testing.assert_array_equal(measure.read_bytes(buffer, n_threads), expected)


def test_roofline_covers_all_threads_and_leaves_their_number():
    before = threads.n_threads()
    found = dict(measure.roofline(n_bytes=1 << 20))
    assert list(found) == list(range(1, before + 1))
    assert all(rate > 0 for rate in found.values())
    assert threads.n_threads() == before


def test_matvec_and_region():
    assert measure.matvec("Q8_0", n_bytes=1 << 19) > 0
    assert measure.region_microseconds() > 0


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
