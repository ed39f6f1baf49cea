"""What models need of a file's tensors. No Numba."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..ops.types import QuantType, is_repacked


class TensorLike(Protocol):
    """A tensor as the GGUF reader gives it."""

    @property
    def name(self) -> str:
        """Name in the file."""
        ...

    @property
    def type(self) -> QuantType:
        """How its rows are stored."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, columns), or (length,)."""
        ...

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """Its bytes, (rows, bytes of a row), or (bytes,)."""
        ...

    def release(self) -> None:
        """Its bytes will hardly be read again: memory that only holds a copy may be given back."""
        ...


def repacked_bytes(tensors: Mapping[str, TensorLike]) -> int:
    """Bytes of memory that `Weights.load` lays matrices out in, known without loading anything."""
    only_looked_up = {"token_embd.weight"} if "output.weight" in tensors else set()
    return sum(
        tensor.data.nbytes
        for name, tensor in tensors.items()
        if name not in only_looked_up
        and len(tensor.shape) == 2
        and is_repacked(tensor.type, tensor.shape[0])
    )
