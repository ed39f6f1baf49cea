"""Byte-pair merging, shared by BPE and SentencePiece vocabularies."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush


def merge(symbols: list[str], key: Callable[[str, str], float | None]) -> list[str]:
    """Join neighbours, smallest key first and leftmost of equals, until no pair has a key.

    `key(left, right)` is the rank of a pair, None when it may not be joined. A heap holds every
    candidate, so a piece of n symbols costs O(n log n). `symbols` is overwritten.
    """
    last = len(symbols) - 1
    ranks = map(key, symbols, symbols[1:])
    heap = [
        (rank, i, i + 1, len(symbols[i]) + len(symbols[i + 1]))
        for i, rank in enumerate(ranks)
        if rank is not None
    ]
    if not heap:
        return symbols
    heapify(heap)
    before = list(range(-1, last))
    after = [*range(1, last + 1), -1]
    while heap:
        _, left, right, size = heappop(heap)
        a, b = symbols[left], symbols[right]
        if not a or not b or len(a) + len(b) != size:
            continue  # one of the two has been merged since
        symbols[left] = joined = a + b
        symbols[right] = ""
        follower = after[left] = after[right]
        if follower >= 0:
            before[follower] = left
            rank = key(joined, symbols[follower])
            if rank is not None:
                size = len(joined) + len(symbols[follower])
                heappush(heap, (rank, left, follower, size))
        leader = before[left]
        if leader >= 0:
            rank = key(symbols[leader], joined)
            if rank is not None:
                heappush(heap, (rank, leader, left, len(symbols[leader]) + len(joined)))
    return [symbol for symbol in symbols if symbol]
