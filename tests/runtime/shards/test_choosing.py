"""Choices of several processes, merged: those of one, by plain NumPy over all tokens."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvarn.ops.reference.select import largest_reference, nearest_reference
from kvarn.ops.select import Range
from kvarn.runtime.attend.sparse import SEED
from kvarn.runtime.shards.choosing import (
    best_entries,
    costs_of_products,
    costs_of_signatures,
    lists_of,
    outside,
    part_of,
)

HEADS, GROUP = 2, 3


@st.composite
def cases(draw: st.DrawFn) -> tuple[Range, int, list[int], np.random.Generator]:
    """Tokens that compete, how many are wanted, where processes begin, and more at random."""
    first = draw(st.integers(0, 5))
    last = first + draw(st.integers(1, 3000))
    stop = last + draw(st.integers(0, 40))
    k = draw(st.integers(1, last - first))
    cuts = draw(st.lists(st.integers(first + 1, last), max_size=3, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    return Range(first, last, stop), k, sorted({first, last, *cuts}), rng


def merged(costs: np.ndarray, among: Range, k: int, cuts: list[int]) -> list[list[int]]:
    """The lists where each process names its k best; costs (H, tokens up to last)."""
    entries, always = [], outside(among, 0, among.stop)
    for first, stop in pairwise(cuts):
        positions = np.arange(first, stop, dtype=np.uint32)
        n = min(k, stop - first)
        entries.append(np.stack([best_entries(row[first:stop], positions, n) for row in costs]))
    return [x.tolist() for x in lists_of(np.concatenate(entries, 1), HEADS, k, always)]


@given(cases())
def test_the_largest_products_of_all_processes_are_those_of_one(case) -> None:
    among, k, cuts, rng = case
    # Few different numbers, so that many are equal.
    products = rng.integers(-4, 4, (HEADS * GROUP, among.stop)).astype(np.float32)
    products[:, ::7] = rng.standard_normal(products[:, ::7].shape)
    products += 0.0  # -0 and 0 are one number
    expected = largest_reference(products, HEADS, among, k, SEED)
    found = merged(costs_of_products(products), among, k, cuts)
    assert found == [x.tolist() for x in expected]


@given(cases(), st.sampled_from((32, 64)))
def test_the_nearest_signatures_of_all_processes_are_those_of_one(case, bits: int) -> None:
    among, k, cuts, rng = case
    high = 1 << 6  # of few bits, so that many are equally near
    queries = rng.integers(0, high, (HEADS, GROUP), np.uint64)
    signatures = rng.integers(0, high, (HEADS, among.stop), np.uint64)
    positions = np.arange(among.stop, dtype=np.uint32)
    costs = [costs_of_signatures(q, s, positions, bits) for q, s in zip(queries, signatures)]
    expected = nearest_reference(queries, signatures, bits, among, k, SEED)
    found = merged(np.concatenate(costs), among, k, cuts)
    assert found == [x.tolist() for x in expected]


@given(st.lists(st.lists(st.integers(0, 99), unique=True), min_size=1, max_size=4))
def test_the_parts_of_lists_are_all_of_them(lists: list[list[int]]) -> None:
    arrays = [np.array(sorted(one), np.uint32) for one in lists]
    parts = [part_of(arrays, first, first + 25) for first in range(0, 100, 25)]
    for i, whole in enumerate(arrays):
        pieces = []
        for tokens, counts in parts:
            at = int(counts[:i].sum())
            pieces += tokens[at : at + counts[i]].tolist()
        assert pieces == whole.tolist()
