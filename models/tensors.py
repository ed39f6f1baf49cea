"""The interface of a file's tensors, and their sizes in memory. Imports no Numba."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..ops.types import QUANT_TYPES, QuantType, is_repacked, row_bytes


class TensorLike(Protocol):
    """A tensor as the GGUF reader gives it."""

    @property
    def name(self) -> str:
        """Name in the file."""

    @property
    def type(self) -> QuantType:
        """The type of its rows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, columns), or (length,)."""

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """Its bytes, (rows, bytes of a row), or (bytes,)."""

    def release(self) -> None:
        """Allow the system to drop cached pages: nobody reads these bytes again soon."""


def repacked_bytes(tensors: Mapping[str, TensorLike]) -> int:
    """Bytes of the arena that `Weights.load` needs for repacked matrices."""
    only_looked_up = {"token_embd.weight"} if "output.weight" in tensors else set()
    return sum(
        tensor.data.nbytes
        for name, tensor in tensors.items()
        if name not in only_looked_up
        and is_matrix(tensor)
        and is_repacked(tensor.type, tensor.shape[-2])
    )


def is_matrix(tensor: TensorLike) -> bool:
    """Whether products read its matrix, or each of its matrices, as a `Weight`: not of experts."""
    return len(tensor.shape) == 2 or (len(tensor.shape) == 3 and "_exps." not in tensor.name)


def re_encoded_bytes(tensors: Mapping[str, TensorLike]) -> int:
    """Bytes of the matrices that `Weights.load` re-encodes as Q8_0, outside the arena.

    They can take six times their bytes in the file.
    """
    q8_0 = QUANT_TYPES["Q8_0"]
    return sum(
        math.prod(tensor.shape[:-1]) * row_bytes(q8_0, tensor.shape[-1])
        for tensor in tensors.values()
        if tensor.type.treatment == "re-encoded"
    )
