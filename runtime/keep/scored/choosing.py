"""How slots are chosen by scores; ties go to the earlier slot."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


def best(scores: NDArray[np.floating], n: int) -> NDArray[np.intp]:
    """Numbers of the n highest of `scores` (slots,), ascending."""
    return np.sort(np.argsort(-scores, kind="stable")[:n])


def rows_of_best(scores: F32, n: int) -> I32:
    """The n highest of each row of scores (J, slots), ascending: int32 (J, n)."""
    return np.stack([best(row, n) for row in scores]).astype(np.int32)


def last(n: int, n_slots: int) -> NDArray[np.intp]:
    """The last n of n_slots slots."""
    return np.arange(n_slots - n, n_slots)
