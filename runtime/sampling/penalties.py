"""What changes logits before any filter: biases and penalties for recent tokens."""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from .candidates import Floats, Ids
from .errors import SamplingError


class History:
    """How often each of the last `n` tokens occurred; n = −1 remembers all, 0 none."""

    def __init__(self, n: int) -> None:
        self._limit = n
        self._recent: deque[int] = deque()
        self._counts: Counter[int] = Counter()

    @property
    def counts(self) -> Mapping[int, int]:
        """Token id → its occurrences in the window, all >= 1."""
        return self._counts

    def add(self, ids: Sequence[int]) -> None:
        """Appends tokens; the oldest leave a full window, so at most the last n are counted."""
        if self._limit == 0:
            return
        if self._limit > 0:
            ids = ids[-self._limit :]
        for token in ids:
            self._counts[token] += 1
            if self._limit < 0:
                continue
            self._recent.append(token)
            if len(self._recent) > self._limit:
                self._forget(self._recent.popleft())

    def _forget(self, token: int) -> None:
        self._counts[token] -= 1
        if not self._counts[token]:
            del self._counts[token]


def add_bias(logits: Floats, bias: Mapping[int, float]) -> Floats:
    """logits with `bias[id]` added, a new array; −inf forbids a token."""
    ids = _known(bias, logits.size, "logit_bias")
    out = logits.copy()
    out[ids] += np.fromiter(bias.values(), np.float32, len(bias))
    return out


def penalise(
    logits: Floats, counts: Mapping[int, int], repeat: float, presence: float, frequency: float
) -> Floats:
    """Logits of recent tokens lowered, a new array.

    l > 0: l / repeat, else l · repeat; then l − count · frequency − presence.
    Source: Keskar et al. 2019 for repeat, with the product for negative logits as llama.cpp.
    """
    ids = _known(counts, logits.size, "penalties")
    found = logits[ids]
    factor = np.float32(repeat)
    found = np.where(found > 0, found / factor, found * factor)
    times = np.fromiter(counts.values(), np.float32, len(counts))
    out = logits.copy()
    out[ids] = found - (times * np.float32(frequency) + np.float32(presence))
    return out


def _known(ids: Collection[int], n_vocab: int, option: str) -> Ids:
    out = np.fromiter(ids, np.intp, len(ids))
    if out.size and not 0 <= out.min() <= out.max() < n_vocab:
        bad = out.min() if out.min() < 0 else out.max()
        raise SamplingError(
            f"sampling: {option} names token {bad}, expected ids from 0 to {n_vocab - 1}"
        )
    return out
