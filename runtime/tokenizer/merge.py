"""Byte-pair merging and its cache, shared by BPE and SentencePiece vocabularies."""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

Key = Callable[[str, str], float | None]

# Up to this many symbols, searching all ranks for each merge is faster than a heap.
_SHORT = 48
_CACHED_LENGTH = 64  # longer words (characters) rarely occur again
_CACHE_SIZE = 1 << 18
_NEVER = float("inf")


class MergeCache:
    """Encodes words and remembers their ids; `encode_word` gives those of a new one."""

    def __init__(self, encode_word: Callable[[str], list[int]]) -> None:
        self._encode_word = encode_word
        self._ids: dict[str, list[int]] = {}

    def encode(self, words: Iterable[str]) -> list[int]:
        """The ids of all words, in order."""
        known = self._ids
        if len(known) > _CACHE_SIZE:
            known.clear()
        ids: list[int] = []
        for word in words:
            word_ids = known.get(word)
            if word_ids is None:
                word_ids = self._encode_word(word)
                if len(word) <= _CACHED_LENGTH:
                    known[word] = word_ids
            ids += word_ids
        return ids


def merge(symbols: list[str], key: Key) -> list[str]:
    """Merge neighbours, smallest key first, the leftmost of equals, until no pair has a key.

    `key(left, right)` is the rank of a pair, None where it is no merge. Costs O(n log n) for n
    symbols. `symbols` is overwritten.
    """
    return (_merge_short if len(symbols) <= _SHORT else _merge_long)(symbols, key)


def _merge_short(symbols: list[str], key: Key) -> list[str]:
    ranks = [_NEVER if rank is None else rank for rank in map(key, symbols, symbols[1:])]
    while ranks:
        best = min(ranks)
        if best == _NEVER:
            break
        i = ranks.index(best)
        joined = symbols[i] = symbols[i] + symbols.pop(i + 1)
        del ranks[i]
        if i < len(ranks):
            rank = key(joined, symbols[i + 1])
            ranks[i] = _NEVER if rank is None else rank
        if i:
            rank = key(symbols[i - 1], joined)
            ranks[i - 1] = _NEVER if rank is None else rank
    return symbols


def _merge_long(symbols: list[str], key: Key) -> list[str]:
    """Merge by a heap of candidates; skips those whose symbols have changed in the meantime."""
    last = len(symbols) - 1
    heap = [
        (rank, i, i + 1, len(symbols[i]) + len(symbols[i + 1]))
        for i, rank in enumerate(map(key, symbols, symbols[1:]))
        if rank is not None
    ]
    heapify(heap)
    before = list(range(-1, last))
    after = [*range(1, last + 1), -1]
    while heap:
        _, left, right, size = heappop(heap)
        a, b = symbols[left], symbols[right]
        if not a or not b or len(a) + len(b) != size:
            continue
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
