"""A file's tensors, checked one by one and prepared for a device."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

import numpy as np

from ..jit.arena import Arena
from ..ops.arrays import F32, U8
from ..ops.device import Array, Device, ExpertMatrix, LowRank, Weight
from ..ops.reference.quants import dequantise
from ..ops.types import QUANT_TYPES, QuantType
from .errors import ModelError
from .low_rank import AdapterLoader, Adapters
from .tensors import TensorLike


@dataclass(frozen=True)
class Linear:
    """y = x W^T + bias, and what adapters add."""

    weight: Weight
    bias: Array | None
    adapter: LowRank | None = None


@dataclass(frozen=True)
class Norm:
    """The weight, and the bias of a layer norm that has one."""

    weight: Array
    bias: Array | None


class Loader:
    """Tensors by name. All methods raise a `ModelError` that names a tensor which is missing or has
    another shape.

    unrounded: ends of the names of matrices (`linear`) whose products do not round activations to 8
    bits: quantised ones become F16, twice the bytes of Q8_0 in memory.
    """

    def __init__(
        self,
        tensors: Mapping[str, TensorLike],
        arena: Arena,
        device: Device,
        adapters: Adapters | None = None,
        unrounded: tuple[str, ...] = (),
    ) -> None:
        self._tensors, self._arena, self.device = tensors, arena, device
        self._unrounded = unrounded
        self.adapters = AdapterLoader(adapters or {}, device)
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def has(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether the file has a tensor of this name and shape."""
        return name in self and tuple(self._tensors[name].shape) == shape

    def check_used(self, architecture: str, ignored: tuple[str, ...] = ()) -> None:
        """Raises `ModelError` that names a tensor which nobody asked for, unless its name begins
        with one of `ignored`."""
        unused = [name for name in self._tensors if name not in self._used]
        if unknown := [name for name in unused if not name.startswith(ignored)]:
            raise ModelError(
                f"cannot load the model: tensor {unknown[0]!r:.80} is unknown to architecture "
                f"{architecture} ({len(unknown)} such tensors)"
            )

    def ignore(self, name: str) -> None:
        """Nobody needs this tensor."""
        self._used.add(name)

    def linear(self, name: str, n_rows: int, n_cols: int) -> Linear:
        """`{name}.weight` (n_rows, n_cols), with `{name}.bias` if there is one."""
        full, shape = f"{name}.weight", (n_rows, n_cols)
        tensor = self.tensor(full, shape)
        if name.endswith(self._unrounded) and tensor.type.name not in ("F32", "F16", "BF16"):
            data = dequantise(tensor.type, tensor.data).astype(np.float16).view(np.uint8)
            tensor.release()
            weight = self.device.weight(QUANT_TYPES["F16"], data, n_cols, full, self._arena)
        else:
            weight = self.matrix(full, shape)
        adapter = self.adapters.low_rank(full, slice(n_rows))
        return Linear(weight, self.optional(f"{name}.bias", n_rows), adapter)

    def split(
        self, name: str, n_rows: list[int], n_cols: int, turned: Container[int] = ()
    ) -> tuple[Linear, ...]:
        """A stored matrix as several, by rows; turned: the numbers of those to transpose."""
        tensor = self.tensor(f"{name}.weight", (sum(n_rows), n_cols))
        bias = self.optional(f"{name}.bias", sum(n_rows))
        parts, first = [], 0
        for number, n in enumerate(n_rows):
            rows = slice(first, first + n)
            kind, data, cols = tensor.type, tensor.data[rows], n_cols
            if number in turned:
                kind, data, cols = *_transposed(kind, data), n
            full = f"{name}.weight[{number}]"
            weight = self.device.weight(kind, data, cols, full, self._arena)
            # Parts of heads take no adapters: one is refused as unused.
            adapter = None if turned else self.adapters.low_rank(f"{name}.weight", rows)
            parts.append(Linear(weight, None if bias is None else bias[rows], adapter))
            first += n
        if all(part.weight.is_copy for part in parts):
            tensor.release()
        return tuple(parts)

    def stack(self, name: str, shape: tuple[int, int, int]) -> tuple[Linear, ...]:
        """`{name}.weight` (n, rows, columns) as n matrices."""
        tensor = self.tensor(f"{name}.weight", shape)
        parts = tuple(
            self.device.weight(tensor.type, part, shape[2], f"{name}.weight[{i}]", self._arena)
            for i, part in enumerate(tensor.data)
        )
        if all(part.is_copy for part in parts):
            tensor.release()
        return tuple(Linear(part, None) for part in parts)

    def matrix(self, name: str, shape: tuple[int, int], products: bool = True) -> Weight:
        """A matrix for products, or one of which only single rows are read."""
        tensor = self.tensor(name, shape)
        arena = self._arena if products else None
        weight = self.device.weight(tensor.type, tensor.data, shape[1], name, arena)
        if weight.is_copy:
            tensor.release()
        return weight

    def row(self, name: str, n: int) -> Linear:
        """`{name}.weight` (n,) as a matrix of one row."""
        tensor = self.tensor(f"{name}.weight", (n,))
        return Linear(self.device.weight(tensor.type, tensor.data.reshape(1, -1), n, name), None)

    def experts(self, name: str, shape: tuple[int, int, int]) -> ExpertMatrix:
        """`{name}.weight` (experts, rows, columns): a matrix of each expert."""
        tensor = self.tensor(f"{name}.weight", shape)
        matrix = self.device.expert_matrix(tensor.type, tensor.data, shape[2], f"{name}.weight")
        if matrix.is_copy:
            tensor.release()
        return matrix

    def rows(self, name: str, shape: tuple[int, int]) -> Array:
        """Rows of numbers, float32 of this shape, on the device."""
        tensor = self.tensor(name, shape)
        values = dequantise(tensor.type, tensor.data)
        return self.device.put(np.ascontiguousarray(values, np.float32))

    def norm(self, name: str, n: int) -> Norm:
        """`{name}.weight` (n,), with `{name}.bias` if there is one.

        Files of falcon-h1 have a norm of the name alone.
        """
        weight = name if name in self else f"{name}.weight"
        return Norm(self.vector(weight, n), self.optional(f"{name}.bias", n))

    def optional(self, name: str, n: int) -> Array | None:
        """A vector, or None where the file has none."""
        return self.vector(name, n) if name in self else None

    def vector(self, name: str, *shape: int) -> Array:
        """`values`, on the device."""
        return self.device.put(self.values(name, *shape))

    def values(self, name: str, *shape: int) -> F32:
        """A vector, float32 (n,), on the host; or rows, one behind the other."""
        tensor = self.tensor(name, shape)
        values = dequantise(tensor.type, tensor.data.reshape(1, -1)).reshape(-1)
        return np.ascontiguousarray(values, np.float32)

    def columns(self, name: str, shape: tuple[int, int]) -> Array:
        """The columns of a small matrix of this shape as rows, float32, on the device."""
        tensor = self.tensor(name, shape)
        values = dequantise(tensor.type, tensor.data.reshape(shape[0], -1)).reshape(shape)
        return self.device.put(np.ascontiguousarray(values.T, np.float32))

    def tensor(self, name: str, shape: tuple[int, ...]) -> TensorLike:
        """A tensor of this shape, as the file has it; a vector may be stored as one row."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ModelError(f"cannot load the model: tensor {name} is missing")
        if tuple(tensor.shape) not in (shape, (1, *shape) if len(shape) == 1 else shape):
            raise ModelError(
                f"cannot load the model: tensor {name} has shape {tuple(tensor.shape)}, "
                f"expected {shape}"
            )
        self._used.add(name)
        return tensor


def _transposed(kind: QuantType, data: U8) -> tuple[QuantType, U8]:
    """The transposed rows, as float32 where they are that, else as float16."""
    name = "F32" if kind.name == "F32" else "F16"
    values = dequantise(kind, data).T.astype(np.float32 if name == "F32" else np.float16)
    return QUANT_TYPES[name], np.ascontiguousarray(values).view(np.uint8)
