"""Low-rank adapters: y = W x + B (A x), beside matrices that stay as they are.

A (R, K) and B (N, R) are float32, with the adapter's scale in B. Several adapters of one matrix are
one of their ranks' sum: the rows of A stand one below the other, the columns of B side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ..ops.types import QUANT_TYPES
from .errors import ModelError

if TYPE_CHECKING:
    from ..ops.device import Activations, Array, Device, Weight

F32 = npt.NDArray[np.float32]


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


@dataclass(frozen=True)
class LowRank:
    """What is added to one projection, on the device of its matrix."""

    a: Weight
    b: Weight
    rank: int

    @property
    def n_bytes(self) -> int:
        """Bytes that a product reads."""
        return self.a.n_bytes + self.b.n_bytes


class AdapterLoader:
    """Factors by the names of their tensors. `used`: what a projection has asked for."""

    def __init__(self, adapters: Adapters, device: Device) -> None:
        self._adapters, self._device = adapters, device
        self._used: set[str] = set()

    def low_rank(self, name: str, rows: slice, n_cols: int) -> LowRank | None:
        """What is added to these rows of the tensor; None where no adapter has it."""
        factors = self._adapters.get(name)
        if factors is None:
            return None
        a, b = factors.a, np.ascontiguousarray(factors.b[rows])
        self._used.add(name)
        rank = len(a)
        return LowRank(
            self._weight(a, n_cols, f"{name}.lora_a"), self._weight(b, rank, f"{name}.lora_b"), rank
        )

    def check_used(self) -> None:
        """Raises `ModelError` that names a tensor which is no projection of its own."""
        if unused := sorted(self._adapters.keys() - self._used):
            raise ModelError(
                f"cannot use the adapter: it changes {unused[0]}, expected matrices of attention, "
                "of dense feed-forwards or of the output (no embeddings, norms or routed experts)"
            )

    def _weight(self, values: F32, n_cols: int, name: str) -> Weight:
        data = np.ascontiguousarray(values, np.float32).view(np.uint8)
        return self._device.weight(QUANT_TYPES["F32"], data, n_cols, name)


class LowRankWork:
    """The memory in which B (A x) is computed for up to `max_rows` vectors, shared by all layers.
    Made on first use: most models have no adapters."""

    def __init__(self, device: Device, max_rows: int, *, alone: bool) -> None:
        self._device, self._max_rows, self._alone = device, max_rows, alone
        self._memory: dict[tuple[str, int, int], Array] = {}
        self._inputs: dict[int, Activations] = {}

    def narrow(self, index: int, n: int, rank: int) -> Array:
        """float32 (n, rank): A x of the product number `index` of those that read the same x."""
        return self._array("narrow", index, n, rank)

    def add(self, products: Sequence[tuple[LowRank, Array, Array]]) -> None:
        """out += B (A x) of each: adapter, A x (T, R), out (T, N)."""
        device, added = self._device, []
        for index, (adapter, narrow, out) in enumerate(products):
            wide = self._array("wide", index, *out.shape)
            device.linear(self._input(adapter.rank).set(narrow), adapter.b, wide)
            added.append((out, wide))
        for out, wide in added:
            device.pointwise.add(out, wide, out)

    def _array(self, kind: str, index: int, n: int, width: int) -> Array:
        key = kind, index, width
        if key not in self._memory:
            self._memory[key] = self._device.memory((self._max_rows * width,), np.float32)
        return self._memory[key][: n * width].reshape(n, width)

    def _input(self, rank: int) -> Activations:
        if rank not in self._inputs:
            self._inputs[rank] = self._device.activations(self._max_rows, rank, alone=self._alone)
        return self._inputs[rank]
