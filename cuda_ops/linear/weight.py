"""A matrix of the model on the GPU, in the planes that kernels read."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ...ops.types import QuantType, row_bytes
from ..errors import CudaOpsError
from .formats import FORMATS, Format
from .planes import Planes, power_for_f16, take_apart


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """N rows of K weights: `linear_many` computes x W^T, `get_rows` reads single rows.

    type    how the file stores them
    factor  a power of two: times it, no weight leaves the range of f16 (`linear`)
    """

    name: str
    type: QuantType
    n_rows: int
    n_cols: int
    format: Format
    planes: Planes = field(repr=False)
    factor: float

    @classmethod
    def prepare(
        cls, type: QuantType, data: torch.Tensor, n_cols: int, device: torch.device, name: str = ""
    ) -> Weight:
        """Copy the rows of a file's tensor, uint8 (N, row_bytes), to a device and take them apart.

        Raises CudaOpsError when the bytes do not fit the shape or the type has no kernel: such
        types are re-encoded as Q8_0 by whoever calls.
        """
        action = f"preparing weights {name or '(unnamed)'}"
        if type.name not in FORMATS:
            raise CudaOpsError(
                f"{action}: found type {type.name}, for which there is no GPU kernel, expected one"
                f" of {', '.join(FORMATS)}"
            )
        expected = row_bytes(type, n_cols)
        if data.ndim != 2 or data.dtype != torch.uint8 or data.shape[1] != expected or n_cols < 1:
            raise CudaOpsError(
                f"{action}: found {data.dtype} of shape {tuple(data.shape)}, expected uint8 (N,"
                f" {expected}) for rows of {n_cols} {type.name}"
            )
        f = FORMATS[type.name]
        planes = take_apart(f, data.to(device), n_cols, type.n_bytes)
        factor = power_for_f16(f, planes)
        return cls(name, type, len(data), n_cols, f, planes, factor)

    @property
    def n_bytes(self) -> int:
        """Bytes that a product reads."""
        return self.n_rows * self.format.row_bytes(self.n_cols)

    @property
    def is_copy(self) -> bool:
        """Whether products read memory of the device, not the file's pages: always."""
        return True
