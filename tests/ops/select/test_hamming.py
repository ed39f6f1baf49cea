"""The nearest signatures, against sorting all of them in NumPy by distance, lot and hash.

What chooses takes 5 seconds to compile for each number of bits and of query heads: tests share it.
"""

import numpy as np
import pytest

from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.select import nearest_reference
from kvarn.ops.select import Lists, Range, SignatureScratch, Wanted, nearest

from ...thread_counts import with_threads

SEED = 20_240_517


def _column(signatures: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Signatures (J, S) as a column [segment][kv_head][token], with the segments' addresses."""
    n_kv_heads, n = signatures.shape
    padded = np.zeros((n_kv_heads, -(-n // SEGMENT) * SEGMENT), np.dtype(f"u{bits // 8}"))
    padded[:, :n] = signatures
    column = padded.reshape(n_kv_heads, -1, SEGMENT).swapaxes(0, 1).copy()
    return column, column.ctypes.data + column[0].nbytes * np.arange(len(column))


def _choose(
    queries, signatures, bits, among: Range, k: int, scratch: SignatureScratch | None = None
) -> list[np.ndarray]:
    n_kv_heads, group = queries.shape
    memory, items = _column(signatures, bits)
    index, counts = np.zeros((n_kv_heads, among.stop), np.uint32), np.zeros(n_kv_heads, np.int64)
    scratch = scratch or SignatureScratch(n_kv_heads * group, n_kv_heads, among.stop, k)
    lists, wanted = Lists(index, counts), Wanted(k, k, SEED)
    nearest(queries, items, bits, among, wanted, lists, scratch=scratch)
    assert memory is not None  # alive up to here
    return [index[j, :n] for j, n in enumerate(counts)]


def _random(rng, bits: int, n_kv_heads: int, group: int, n: int) -> tuple:
    words = rng.integers(0, 1 << bits, (n_kv_heads, n + group), dtype=np.uint64)
    return words[:, :group].copy(), words[:, group:].copy()


@pytest.mark.parametrize(
    ("bits", "n_kv_heads", "group"), [(32, 2, 4), (64, 2, 3), (32, 1, 1), (32, 3, 8), (64, 1, 3)]
)
def test_the_nearest_are_those_of_a_sort(bits: int, n_kv_heads: int, group: int) -> None:
    rng = np.random.default_rng(bits + group)
    for first, last, stop, k in (
        (0, 1, 1, 1),
        (3, 70, 75, 16),
        (0, 1024, 1024, 1023),
        (128, 1025, 1100, 5),
        (5, 9000, 9001, 130),
        (64, 40_000, 40_064, 4000),
    ):
        queries, signatures = _random(rng, bits, n_kv_heads, group, stop)
        got = _choose(queries, signatures, bits, Range(first, last, stop), k)
        want = nearest_reference(queries, signatures, bits, (first, last, stop), k, SEED)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("bits", [32, 64])
def test_equal_distances_are_spread_over_the_text(bits: int) -> None:
    """All keys alike: lots and hashes decide, and take neither end of the text for granted."""
    n, k = 20_000, 1000
    queries = np.zeros((1, {32: 1, 64: 3}[bits]), np.uint64)  # of which each chooses the same
    signatures = np.full((1, n), 7, np.uint64)
    got = _choose(queries, signatures, bits, Range(0, n, n), k)
    want = nearest_reference(queries, signatures, bits, (0, n, n), k, SEED)
    np.testing.assert_array_equal(got[0], want[0])
    for places, m in ((got[0] * 4 // n, 4), (got[0] % 64, 64), (got[0] // 64 % 16, 16)):
        expected = k / m
        off = np.bincount(places, minlength=m) - expected
        assert np.abs(off).max() < 5 * np.sqrt(expected)  # five standard deviations


def test_a_sample_that_promises_too_much_is_corrected() -> None:
    """Near keys lie only where the sample looks: the first pass finds too few for one query."""
    n, k, far = 50 * SEGMENT, 3000, 0xFFFF_FFFF
    signatures = np.full((1, n), far, np.uint64)
    run = 64
    step = (n - run) // (4096 // run - 1)
    for i in range(4096 // run):
        signatures[0, i * step : i * step + run] = np.arange(run) % 3
    for queries in ([0], [0, far, 1, 0xFFFF]):
        q = np.array([queries], np.uint64)
        got = _choose(q, signatures, 32, Range(0, n, n), k)
        want = nearest_reference(q, signatures, 32, (0, n, n), k, SEED)
        np.testing.assert_array_equal(got[0], want[0])


def test_text_with_a_period() -> None:
    """One segment of eight, and of four, has the near keys, which a regular sample would miss."""
    n, k = 60 * SEGMENT + 100, 2000
    rng = np.random.default_rng(5)
    for period in (4, 8):
        _, signatures = _random(rng, 32, 1, 1, n)
        queries = np.zeros((1, 4), np.uint64)
        for segment in range(3, 60, period):
            signatures[0, segment * SEGMENT : (segment + 1) * SEGMENT] &= np.uint64(0xFFF)
        got = _choose(queries, signatures, 32, Range(7, n - 50, n), k)
        want = nearest_reference(queries, signatures, 32, (7, n - 50, n), k, SEED)
        np.testing.assert_array_equal(got[0], want[0])


def test_a_shorter_context_forgets_a_longer_one() -> None:
    queries, signatures = _random(np.random.default_rng(2), 32, 1, 4, 4000)
    scratch = SignatureScratch(4, 1, 4000, 900)
    for last in (4000, 130, 3000, 65):
        among, k = Range(0, last, last), last // 5
        got = _choose(queries, signatures, 32, among, k, scratch)
        want = nearest_reference(queries, signatures, 32, (0, last, last), k, SEED)
        np.testing.assert_array_equal(got[0], want[0])


def test_one_thread_gives_the_same_lists() -> None:
    queries, signatures = _random(np.random.default_rng(1), 32, 3, 4, 5000)
    results = []
    for _ in with_threads(1, 2):
        results.append(_choose(queries, signatures, 32, Range(4, 4900, 5000), 50))
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


def test_refuses_in_words() -> None:
    queries, signatures = _random(np.random.default_rng(1), 32, 1, 1, 100)
    for words, bad in {
        "cannot choose 0": (queries, 32, Range(0, 90, 100), 0),
        "expected 1 to 90": (queries, 32, Range(0, 90, 100), 91),
        "does not fit": (queries, 32, Range(50, 50, 100), 1),
        "16 bits": (queries, 16, Range(0, 90, 100), 5),
        "queries are": (queries[:, :0].reshape(1, 0), 32, Range(0, 90, 100), 5),
    }.items():
        q, bits, among, k = bad
        index, counts = np.zeros((1, 100), np.uint32), np.zeros(1, np.int64)
        with pytest.raises(OpsError, match=words):
            nearest(
                q, np.zeros(1, np.int64), bits, among, Wanted(k, k, 0), Lists(index, counts),
                scratch=SignatureScratch(1, 1, 100, 100),
            )  # fmt: skip
    assert signatures.shape == (1, 100)
