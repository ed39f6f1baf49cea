"""Low-rank adapters: y = W x + B (A x), beside matrices that stay as they are.

A (R, K) and B (N, R) are float32, with the adapter's scale in B. Several adapters of one matrix are
one of their ranks' sum: the rows of A stand one below the other, the columns of B side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..ops.arrays import F32
from .errors import ModelError

if TYPE_CHECKING:
    from ..ops.device import Device, LowRank


class Factors(NamedTuple):
    """What adapters add to one matrix of N rows and K columns: b a."""

    a: F32
    """(R, K)"""
    b: F32
    """(N, R), times the scale"""


Adapters = Mapping[str, Factors]
"""By the name of the tensor, such as "blk.0.attn_q.weight"."""


def joined(parts: Sequence[Factors]) -> Factors:
    """The sum of what several adapters add to one matrix."""
    return Factors(np.concatenate([x.a for x in parts]), np.concatenate([x.b for x in parts], 1))


class AdapterLoader:
    """Factors by the names of their tensors. `used`: what a projection has asked for."""

    def __init__(self, adapters: Adapters, device: Device) -> None:
        self._adapters, self._device = adapters, device
        self._used: set[str] = set()

    def low_rank(self, name: str, rows: slice) -> LowRank | None:
        """What is added to these rows of the tensor; None where no adapter has it."""
        factors = self._adapters.get(name)
        if factors is None:
            return None
        self._used.add(name)
        return self._device.low_rank(factors.a, factors.b[rows])

    def check_used(self) -> None:
        """Raises `ModelError` that names a tensor which is no projection of its own."""
        if unused := sorted(self._adapters.keys() - self._used):
            raise ModelError(
                f"cannot use the adapter: it changes {unused[0]}, expected matrices of attention, "
                "of dense feed-forwards or of the output (no embeddings, norms or routed experts)"
            )
