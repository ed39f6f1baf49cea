"""The tokens that may still be chosen; softmax and log-softmax of logits."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...ops.arrays import F32, F64
from .errors import NotFinite, SamplingError

Floats = F32
Ids = NDArray[np.intp]


@dataclass(frozen=True)
class Candidates:
    """Tokens that may still be chosen: `ids[n]` and their `logits[n]`, never empty.

    `ordered`: the logits are in descending order, equal ones by id.
    """

    ids: Ids
    logits: Floats
    ordered: bool = False

    @classmethod
    def of(cls, logits: Floats) -> "Candidates":
        """All tokens of `logits`, float32 (V,), without a copy."""
        if logits.ndim != 1 or not logits.size:
            raise SamplingError(f"sampling: logits have shape {logits.shape}, expected (V,)")
        return cls(_all_ids(logits.size), logits)

    def __len__(self) -> int:
        return int(self.ids.size)

    @property
    def is_whole(self) -> bool:
        """Whether they are the whole vocabulary, in order: the id of a token is its index."""
        return self.ids is _all_ids(len(self))

    def find(self, tokens: Ids) -> tuple[Ids, Ids]:
        """Find tokens among the candidates: their indices there, and those in `tokens`."""
        if self.is_whole:
            within = np.flatnonzero(tokens < len(self))
            return tokens[within], within
        order = np.argsort(self.ids)
        places = order[np.minimum(np.searchsorted(self.ids, tokens, sorter=order), len(self) - 1)]
        within = np.flatnonzero(self.ids[places] == tokens)
        return places[within], within

    def changed(self, indices: Ids, logits: Floats) -> "Candidates":
        """These with other logits at `indices`."""
        out = self.logits.copy()
        out[indices] = logits
        return Candidates(self.ids, out)

    def take(self, indices: Ids, *, ordered: bool) -> "Candidates":
        """The candidates at `indices`, in that order."""
        return Candidates(self.ids[indices], self.logits[indices], ordered)


@lru_cache(maxsize=4)
def _all_ids(n_vocab: int) -> Ids:
    """0 … V−1, cached: a new megabyte per token costs more than the rest of the chain."""
    ids = np.arange(n_vocab)
    ids.flags.writeable = False
    return ids


def softmax(logits: Floats) -> Floats:
    """p_i = exp(l_i − max l) / Σ exp(l_j − max l), float32 with the sum in float64."""
    with np.errstate(over="ignore"):  # beyond float32, the probability is 0
        exps = np.exp(logits - _finite(logits.max()))
    return np.asarray(exps / np.float32(exps.sum(dtype=np.float64)))


def log_softmax(logits: Floats) -> F64:
    """log p_i = l_i − max l − log Σ exp(l_j − max l), in float64."""
    shifted = logits.astype(np.float64) - float(_finite(logits.max()))
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def best_token(logits: Floats) -> int:
    """The id of the highest logit, the lowest id among equals; raises `SamplingError` on NaN."""
    best = int(np.argmax(logits))
    _finite(logits[best])
    return best


def _finite(highest: np.float32) -> np.float32:
    if not np.isfinite(highest):
        raise NotFinite(
            f"sampling: the highest logit is {highest}, expected a finite number; "
            "the model's output is broken or every token is forbidden"
        )
    return highest
