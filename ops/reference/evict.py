"""Eviction in plain NumPy: the slot that each method gives to a new token."""

import numpy as np
from numpy.typing import NDArray

MIX = 0x9E3779B1  # 2^32 / golden ratio


def signatures(x: NDArray[np.floating], planes: NDArray[np.floating]) -> NDArray[np.bool_]:
    """planes (bits, E) . x (…, E) > 0: (…, bits), in float64."""
    return x.astype(np.float64) @ planes.astype(np.float64).T > 0


def farthest_slot(
    query_bits: NDArray[np.bool_],
    key_bits: NDArray[np.bool_],
    positions: NDArray[np.integer],
    position: int,
    sinks: int,
    recent: int,
) -> int:
    """The slot that a token at `position` takes in one KV head; HashEvict, algorithm 1.

    query_bits (G, bits), key_bits (slots, bits), positions (slots,). The slot with the largest
    Hamming distance, summed over the group, among positions sinks .. position-recent-1. Ties go to
    the highest hash of the position, then to the lowest slot.
    """
    distance = (query_bits[:, None] != key_bits[None]).sum((0, 2)).astype(np.int64)
    tie = positions.astype(np.int64) * MIX % (1 << 32) >> 16
    may_go = (positions >= sinks) & (positions < position - recent)
    return int(np.where(may_go, distance << 16 | tie, -1).argmax())


def ring_slot(position: int, n_slots: int, sinks: int) -> int:
    """The slot that a token at `position` takes in StreamingLLM's ring behind the sinks."""
    if position < n_slots:
        return position
    return sinks + (position - sinks) % (n_slots - sinks)
