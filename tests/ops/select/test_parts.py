"""Choices of several processes, merged: those of one, by plain NumPy over all tokens."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.jit.arena import aligned
from kvarn.ops.attention.api import append_kv
from kvarn.ops.attention.layout import SEGMENT, layout_of
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.select import (
    largest_reference,
    nearest_reference,
    position_hash_reference,
)
from kvarn.ops.select import Lists, Range, Wanted
from kvarn.ops.select.parts import (
    NO_LIMIT,
    LargestScratch,
    LimitScratch,
    ListScratch,
    NearestScratch,
    SurroundScratch,
    key_limits,
    largest_entries,
    list_entries,
    nearest_entries,
    surround,
)

SEED = 20_240_517
HEADS, GROUP = 2, 4
LAYOUT = layout_of(32, "f16", "f16")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Range, int, list[int], np.random.Generator]:
    """Tokens that compete, how many are wanted, where processes begin, and more at random."""
    first = draw(st.integers(0, 5))
    last = first + draw(st.integers(1, 9000))
    stop = last + draw(st.integers(0, 40))
    k = draw(st.integers(1, last - first))
    cuts = draw(st.lists(st.integers(0, stop), max_size=3, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    return Range(first, last, stop), k, sorted({0, stop, *cuts}), rng


class Keys:
    """Stored keys whose products with the query heads q are given, (H, S), as f16 holds them."""

    def __init__(self, products: np.ndarray, n_kv_heads: int) -> None:
        n_heads, n = products.shape
        group, self.n_kv_heads = n_heads // n_kv_heads, n_kv_heads
        keys, self.q = np.zeros((n, n_kv_heads, 32), np.float32), np.zeros((1, n_heads, 32), "f4")
        for h in range(n_heads):
            keys[:, h // group, h % group], self.q[0, h, h % group] = products[h], 1
        size = LAYOUT.segment_bytes(n_kv_heads)
        self.memory = aligned((-(-n // SEGMENT), size), np.uint8)
        self.segments = self.memory.ctypes.data + size * np.arange(len(self.memory))
        append_kv(keys, keys, self.segments, LAYOUT, 0)

    def largest(self, among: Range, k: int) -> np.ndarray:
        n_heads = self.q.shape[1]
        entries = np.zeros((n_heads, k), np.uint64)
        scratch = LargestScratch(n_heads, self.n_kv_heads, among.last, k, LAYOUT)
        wanted = Wanted(k, k, SEED)
        largest_entries(self.q, self.segments, among, wanted, entries, scratch=scratch)
        return entries


def listed(parts, limits, among: Range, n_heads: int = HEADS) -> list[list[int]]:
    """The lists of all parts, one after the other; parts: (begin, stop, entries)."""
    found: list[list[int]] = [[] for _ in range(n_heads)]
    for begin, stop, entries in parts:
        first = min(max(begin, among.first), stop)
        span = Range(first, max(first, min(among.last, stop)), stop)
        lists = Lists(np.zeros((n_heads, stop), np.uint32), np.zeros(n_heads, np.int64))
        list_entries(entries, limits, begin, span, SEED, lists, scratch=ListScratch(stop))
        for all_of, tokens, n in zip(found, *lists):
            all_of.extend(tokens[:n].tolist())
    return found


def merged(name, among: Range, k: int, cuts: list[int]) -> list[list[int]]:
    """The lists where each process names its k best: name(first, last, n) gives its entries."""
    parts = []
    for begin, stop in pairwise(cuts):
        first, last = max(begin, among.first), min(stop, among.last)
        none = np.empty((HEADS * GROUP, 0), np.uint64)
        entries = name(first, last, min(k, last - first)) if first < last else none
        parts.append((begin, stop, entries))
    every = [part[2] for part in parts]
    room = sum(entries.shape[1] for entries in every)
    scratch = LimitScratch(HEADS * GROUP, len(every), room)
    limits, within = key_limits(every, k, SEED, scratch=scratch)
    assert (within.sum(0) == k).all()
    for entries, counts in zip(every, within):
        positions = entries & np.uint64(0xFFFFFFFF)
        keys = entries - positions + position_hash_reference(positions, SEED)
        assert ((keys <= limits[:, None]).sum(1) == counts).all()
    return listed(parts, limits, among)


@given(cases())
def test_the_largest_products_of_all_processes_are_those_of_one(case) -> None:
    among, k, cuts, rng = case
    # Few different numbers, so that many are equal.
    products = rng.integers(-4, 4, (HEADS * GROUP, among.stop)).astype(np.float32)
    products[:, ::7] = rng.standard_normal(products[:, ::7].shape).astype(np.float16)
    products += 0.0  # -0 and 0 are one number
    keys = Keys(products, HEADS)

    def name(first: int, last: int, n: int) -> np.ndarray:
        return keys.largest(Range(first, last, last), n)

    expected = largest_reference(products, HEADS, among, k, SEED)
    assert merged(name, among, k, cuts) == [x.tolist() for x in expected]


@given(cases(), st.sampled_from((32, 64)), st.booleans())
def test_the_nearest_signatures_of_all_processes_are_those_of_one(case, bits, alike) -> None:
    among, k, cuts, rng = case
    high = 1 << (6 if alike else bits - 1)  # of few bits, so that many are equally near
    queries = rng.integers(0, high, (HEADS, GROUP), np.uint64)
    signatures = rng.integers(0, high, (HEADS, among.stop), np.uint64)
    padded = np.zeros((HEADS, -(-among.stop // SEGMENT) * SEGMENT), f"u{bits // 8}")
    padded[:, : among.stop] = signatures
    column = padded.reshape(HEADS, -1, SEGMENT).swapaxes(0, 1).copy()
    items = column.ctypes.data + column[0].nbytes * np.arange(len(column))

    def name(first: int, last: int, n: int) -> np.ndarray:
        scratch = NearestScratch(HEADS * GROUP, HEADS, last, n)
        entries, wanted = np.zeros((HEADS * GROUP, n), np.uint64), Wanted(n, n, SEED)
        span = Range(first, last, last)
        nearest_entries(queries, items, bits, span, wanted, entries, scratch=scratch)
        return entries

    expected = nearest_reference(queries, signatures, bits, among, k, SEED)
    assert merged(name, among, k, cuts) == [x.tolist() for x in expected]


def test_products_that_are_no_numbers_are_never_chosen() -> None:
    products = np.full((1, 40), np.nan, np.float32)
    products[0, [3, 17, 30]] = 1.0, -np.inf, 2.0
    entries = Keys(products, 1).largest(Range(2, 38, 38), 20)
    limits = np.array([NO_LIMIT])
    found = listed([(0, 40, entries)], limits, Range(2, 38, 40), 1)
    assert found == [[0, 1, 3, 17, 30, 38, 39]]


def test_entries_of_tokens_of_others_are_passed_over() -> None:
    """A process could name anything."""
    entries = np.array([[5, 9, 10, 1 << 31, (1 << 64) - 1, (7 << 32) | 6]], np.uint64)
    found = listed([(4, 12, entries)], np.array([NO_LIMIT]), Range(5, 10, 12), 1)
    assert found == [[4, 5, 6, 9, 10, 11]]


def test_what_does_not_fit_is_refused() -> None:
    wanted, among = Wanted(9, 9, SEED), Range(0, 50, 50)
    scratch, q = LargestScratch(2, 1, 100, 8, LAYOUT), np.zeros((1, 2, 32), "f4")
    for words, q_of, n_segments, k in (
        ("9 of tokens 0 to 49, expected up to 8", q, 1, 9),
        (r"q is float32 \(1, 2, 31\)", q[..., 1:], 1, 8),
        ("token 49 lies outside", q, 0, 8),
    ):
        with pytest.raises(OpsError, match=words):
            largest_entries(
                q_of, np.zeros(n_segments, np.int64), among, Wanted(k, k, SEED),
                np.zeros((2, k), np.uint64), scratch=scratch,
            )  # fmt: skip
    queries, items = np.zeros((1, 3), np.uint64), np.zeros(1, np.int64)
    with pytest.raises(OpsError, match=r"queries are uint64 \(1, 3\)"):
        nearest_entries(
            queries, items, 32, Range(0, 50, 50), wanted, np.zeros((2, 8), np.uint64),
            scratch=NearestScratch(2, 1, 100, 8),
        )  # fmt: skip
    short = Lists(np.zeros((1, 3), np.uint32), np.zeros(1, np.int64))
    entries, lists = np.zeros((1, 2), np.uint64), ListScratch(100)
    with pytest.raises(OpsError, match="lists are"):
        list_entries(
            entries, np.zeros(1, np.uint64), 0, Range(2, 50, 50), SEED, short, scratch=lists
        )
    with pytest.raises(OpsError, match="room for 2"):
        key_limits([np.zeros((1, 3), np.uint64)], 1, SEED, scratch=LimitScratch(1, 1, 2))


@given(cases())
def test_lists_around_those_that_were_chosen(case) -> None:
    among, k, _, rng = case
    first, last, stop = among
    begin, width = int(rng.integers(0, first + 1)), min(k, last - first)
    chosen = Lists(np.zeros((HEADS, width), np.uint32), rng.integers(0, width + 1, HEADS))
    for row, n in zip(*chosen):
        row[:n] = np.sort(rng.choice(np.arange(first, last), n, replace=False))
    room = first - begin + width + stop - last
    lists = Lists(np.zeros((HEADS, room), np.uint32), np.zeros(HEADS, np.int64))
    surround(chosen, begin, among, lists, scratch=SurroundScratch())
    for (tokens, n), (row, m) in zip(zip(*lists), zip(*chosen)):
        expected = [*range(begin, first), *row[:m], *range(last, stop)]
        assert tokens[:n].tolist() == expected
    if room:
        small = Lists(np.zeros((HEADS, room - 1), np.uint32), lists.counts)
        with pytest.raises(OpsError, match="lists around others"):
            surround(chosen, begin, among, small, scratch=SurroundScratch())
    with pytest.raises(OpsError, match="to Range"):
        surround(chosen, first + 1, among, lists, scratch=SurroundScratch())
