"""Changes of logits before any filter: biases, and penalties for recent tokens."""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from .candidates import Candidates, Floats, Ids
from .errors import SamplingError
from .options import SamplingOptions


class History:
    """Counts how often each of the last `n` tokens occurred; n = −1 remembers all, 0 none.

    counts: token id → occurrences, all >= 1.
    """

    def __init__(self, n: int) -> None:
        self._limit = n
        self._recent: deque[int] = deque()
        self.counts: Counter[int] = Counter()

    def copy(self) -> "History":
        """The same counts, which go on by themselves."""
        other = History(self._limit)
        other._recent, other.counts = self._recent.copy(), self.counts.copy()
        return other

    def add(self, ids: Sequence[int]) -> None:
        """Append tokens. The oldest leave a full window."""
        if self._limit < 0:
            self.counts.update(ids)
            return
        for token in ids[-self._limit :] if self._limit else ():
            self.counts[token] += 1
            self._recent.append(token)
            if len(self._recent) > self._limit:
                oldest = self._recent.popleft()
                self.counts[oldest] -= 1
                if not self.counts[oldest]:
                    del self.counts[oldest]


def add_bias(logits: Floats, bias: Mapping[int, float]) -> Floats:
    """logits with `bias[id]` added, a new array; −inf forbids a token."""
    ids = checked_ids(bias, logits.size, "logit_bias")
    out = logits.copy()
    out[ids] += np.fromiter(bias.values(), np.float32, len(bias))
    return out


def penalise(
    candidates: Candidates, counts: Mapping[int, int], options: SamplingOptions
) -> Candidates:
    """Candidates whose logits are lower where tokens are recent.

    l > 0: l / repeat, else l · repeat; then l − count · frequency − presence.
    Source: Keskar et al. 2019 for repeat, with the product for negative logits as llama.cpp.
    """
    indices, seen = candidates.find(np.fromiter(counts, np.intp, len(counts)))
    recent = candidates.logits[indices]
    repeat = np.float32(options.repeat_penalty)
    recent = np.where(recent > 0, recent / repeat, recent * repeat)
    times = np.fromiter(counts.values(), np.float32, len(counts))[seen]
    penalty = times * np.float32(options.frequency_penalty) + np.float32(options.presence_penalty)
    return candidates.changed(indices, recent - penalty)


def checked_ids(ids: Collection[int], n_vocab: int, option: str) -> Ids:
    array = np.fromiter(ids, np.intp, len(ids))
    if array.size and not 0 <= array.min() <= array.max() < n_vocab:
        bad = array.min() if array.min() < 0 else array.max()
        raise SamplingError(
            f"sampling: {option} names token {bad}, expected ids from 0 to {n_vocab - 1}"
        )
    return array
