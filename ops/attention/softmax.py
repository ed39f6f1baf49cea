"""How scores become weights: what an attention takes beside queries, keys and values."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from .arguments import Scoring

Floats = TypeVar("Floats", NDArray[np.float32], NDArray[np.float64])


class Softmax(NamedTuple):
    """weight_i = exp(s_i) / (Σ_j exp(s_j) + exp(sink)), s_i = cap(scale q · k_i).

    cap(s) = softcap tanh(s / softcap), or s where softcap is 0. sinks float32 (H,): one logit a
    head, which belongs to no token (`add_sinks`); None: there are none, exp(sink) is 0.
    """

    scale: float
    softcap: float = 0.0
    sinks: NDArray[np.float32] | Any = None
    """An array of the device that attends."""

    @property
    def scoring(self) -> Scoring:
        """The same for kernels, which know no sinks."""
        return Scoring(self.scale, self.softcap)

    def scores(self, products: Floats) -> Floats:
        """s of products q · k, in their type."""
        s = products * products.dtype.type(self.scale)
        return self.softcap * np.tanh(s / self.softcap) if self.softcap else s
