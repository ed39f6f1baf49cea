"""Choices among the tokens of several processes, with the result that one of them would have.

Each process names the k best of its own tokens for each query head, as entries: the cost (uint32,
less is better) above the position (uint32). The k best of all are those of one context: of equal
costs, the same hash of the position decides as in `ops.select`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ops.arrays import F32, I64, U32, U64
from ...ops.reference.select import lots_reference, position_hash_reference
from ...ops.select import Range
from ..attend.sparse import SEED

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_SIGN = np.uint32(1 << 31)


def costs_of_products(products: F32) -> U32:
    """Costs that are less for larger products, in the order of all float32."""
    bits: U32 = products.view(np.uint32)
    costs: U32 = np.where(bits & _SIGN != 0, bits, ~(bits | _SIGN))
    return costs


def costs_of_signatures(queries: U64, signatures: U64, positions: U32, bits: int) -> U32:
    """The costs of tokens by their signatures (n,) for queries (G,), uint32 (G, n): the Hamming
    distance, and between equal ones the lot of a position (`ops.select.signatures.lots`)."""
    n_lots = 128 // bits
    distances = np.bitwise_count(signatures ^ queries[:, None]).astype(np.uint32)
    costs: U32 = n_lots * distances + lots_reference(positions.astype(np.int64), n_lots, SEED)
    return costs


def best_entries(costs: U32, positions: U32, k: int) -> U64:
    """The entries of the k best of n >= k tokens, in no order: costs (n,), positions (n,)."""
    keys = _keys(costs, positions)
    best = np.argpartition(keys, k - 1)[:k] if k < len(keys) else np.arange(len(keys))
    return _entries(costs[best], positions[best])


def lists_of(entries: U64, n_kv_heads: int, k: int, always: U32) -> list[U32]:
    """The tokens that each KV head reads, ascending: of the entries (H, n) of each query head the k
    best, and those that are read without being chosen."""
    costs, positions = (entries >> _HALF).astype(np.uint32), (entries & _LOW).astype(np.uint32)
    keys = _keys(costs, positions)
    if k < keys.shape[1]:
        best = np.argpartition(keys, k - 1, axis=1)[:, :k]
        positions = np.take_along_axis(positions, best, 1)
    groups = positions.reshape(n_kv_heads, -1)
    return [np.union1d(always, chosen) for chosen in groups]


def outside(among: Range, first: int, stop: int) -> U32:
    """Of the tokens first … stop - 1, those that do not compete."""
    before = np.arange(first, min(stop, max(first, among.first)))
    return np.concatenate([before, np.arange(max(first, among.last), stop)]).astype(np.uint32)


def part_of(lists: Sequence[U32], first: int, stop: int) -> tuple[U32, I64]:
    """Of ascending lists, the tokens first … stop - 1: all in one array, and how many each has."""
    parts = [x[np.searchsorted(x, first) : np.searchsorted(x, stop)] for x in lists]
    return np.concatenate(parts), np.array([len(part) for part in parts], np.int64)


def _keys(costs: U32, positions: U32) -> U64:
    """Numbers that order tokens as choices do."""
    return _entries(costs, position_hash_reference(positions, SEED))


def _entries(costs: U32, low: U32) -> U64:
    return (costs.astype(np.uint64) << _HALF) | low.astype(np.uint64)
