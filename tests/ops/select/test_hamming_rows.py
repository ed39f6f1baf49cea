"""Choices for many rows: each row's list is that of a sort, and of `nearest` for it alone."""

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.select import nearest_reference
from kvarn.ops.select import (
    Lists,
    Range,
    RowSignatureScratch,
    SignatureScratch,
    Wanted,
    nearest,
    nearest_rows,
)

from .test_hamming import SEED, _column


def _rows(queries, signatures, bits, first, last, k, scratch=None) -> list[list[np.ndarray]]:
    """The list of each row and KV head; queries uint64 (R, J, G)."""
    n_rows, n_kv_heads, group = queries.shape
    memory, items = _column(signatures, bits)
    room = min(k * group, last - first)
    lists = np.full((n_rows, n_kv_heads, room), 0xFFFFFFFF, np.uint32)
    counts = np.zeros((n_rows, n_kv_heads), np.int64)
    scratch = scratch or RowSignatureScratch(n_kv_heads * group, n_kv_heads, last, k)
    among = Range(first, last, last)
    wanted = Wanted(k, k, SEED)
    nearest_rows(queries, items, bits, among, wanted, lists, counts, scratch=scratch)
    assert memory is not None  # alive up to here
    return [[lists[r, j, : counts[r, j]] for j in range(n_kv_heads)] for r in range(n_rows)]


def _chosen(queries, signatures, bits, first, last, k) -> list[list[np.ndarray]]:
    """What sorting all signatures gives, without the tokens before `first`."""
    chosen = []
    for row in queries:
        lists = nearest_reference(row, signatures, bits, (first, last, last), k, SEED)
        chosen.append([tokens[tokens >= first] for tokens in lists])
    return chosen


def _check(queries, signatures, bits, first, last, k, scratch=None) -> None:
    got = _rows(queries, signatures, bits, first, last, k, scratch)
    for lists, expected in zip(
        got, _chosen(queries, signatures, bits, first, last, k), strict=True
    ):
        for a, b in zip(lists, expected, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("bits", "n_kv_heads", "group"), [(32, 2, 4), (32, 1, 8), (32, 1, 1), (64, 1, 3)]
)
def test_each_row_chooses_what_a_sort_gives(bits: int, n_kv_heads: int, group: int) -> None:
    rng = np.random.default_rng(bits + group)
    for first, last, k, n_rows in (
        (0, 1, 1, 1),
        (3, 70, 16, 33),
        (0, 1024, 1023, 2),
        (5, 9000, 130, 32),
        (128, 40_000, 512, 5),
    ):
        signatures = rng.integers(0, 1 << bits, (n_kv_heads, last), dtype=np.uint64)
        queries = rng.integers(0, 1 << bits, (n_rows, n_kv_heads, group), dtype=np.uint64)
        _check(queries, signatures, bits, first, last, k)


@pytest.mark.parametrize("bits", [32, 64])
def test_few_of_many_tokens(bits: int) -> None:
    rng, k, group = np.random.default_rng(bits), 20, {32: 4, 64: 3}[bits]
    scratch = RowSignatureScratch(2 * group, 2, 40_000, 100)
    for first, last in ((5, 8004), (31_000, 40_000), (128, 40_000)):
        signatures = rng.integers(0, 1 << bits, (2, last), dtype=np.uint64)
        queries = rng.integers(0, 1 << bits, (33, 2, group), dtype=np.uint64)
        _check(queries, signatures, bits, first, last, k, scratch)


def test_rows_that_need_other_limits_than_the_row_before() -> None:
    """Near keys of every other row lie in one place; the others find theirs far away."""
    n, k, far = 50 * SEGMENT, 600, np.uint64(0xFFFF_FFFF)
    signatures = np.full((1, n), far, np.uint64)
    signatures[0, 40_000:41_000] = np.arange(1000) % 7
    queries = np.array([0, far, 1, 0xFFFF] * 9, np.uint64).reshape(36, 1, 1)
    _check(queries, signatures, 32, 0, n, k)
    _check(queries.reshape(9, 1, 4), signatures, 32, 100, n - 50, k)


def test_equal_keys_and_scratch_that_was_used_before() -> None:
    scratch = RowSignatureScratch(4, 1, 20_000, 700)
    for last, k in ((20_000, 700), (130, 20), (9000, 512)):
        queries, signatures = np.zeros((3, 1, 4), np.uint64), np.full((1, last), 7, np.uint64)
        _check(queries, signatures, 32, 0, last, k, scratch)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_512_rows_choose_as_one_by_one(n_threads: int) -> None:
    rng, n, k = np.random.default_rng(9), 20_000, 64
    signatures = rng.integers(0, 1 << 32, (2, n), dtype=np.uint64)
    queries = rng.integers(0, 1 << 32, (512, 2, 4), dtype=np.uint64)
    before = threads.n_threads()
    threads.set_threads(min(n_threads, threads.max_threads()))
    got = _rows(queries, signatures, 32, 128, n, k)
    threads.set_threads(before)
    memory, items = _column(signatures, 32)
    scratch = SignatureScratch(8, 2, n, k)
    index, counts = np.zeros((2, n), np.uint32), np.zeros(2, np.int64)
    for row, lists in zip(queries, got, strict=True):
        among, wanted = Range(128, n, n), Wanted(k, k, SEED)
        nearest(row, items, 32, among, wanted, Lists(index, counts), scratch=scratch)
        for j, tokens in enumerate(lists):
            np.testing.assert_array_equal(tokens, index[j, 128 : counts[j]])
    assert memory is not None


def test_refuses_in_words() -> None:
    signatures, queries = np.zeros((2, 100), np.uint64), np.zeros((3, 2, 4), np.uint64)
    scratch = RowSignatureScratch(8, 2, 100, 10)
    for words, bad in {
        "queries are": (queries[:, :1], 32, 0, 100, 5),
        "31 bits": (queries, 31, 0, 100, 5),
        "tokens 5 to 4": (queries, 32, 5, 5, 1),
        "cannot choose 11 tokens": (queries, 32, 0, 100, 11),
    }.items():
        with pytest.raises(OpsError, match=words):
            _, items = _column(signatures, 32)
            q, bits, first, last, k = bad
            lists = np.zeros((3, 2, 100), np.uint32)
            nearest_rows(
                q, items, bits, Range(first, last, last), Wanted(k, k, SEED), lists,
                np.zeros((3, 2), np.int64), scratch=scratch,
            )  # fmt: skip
