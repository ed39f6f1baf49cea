"""Reads safetensors files, a few rows at a time.

    ├─ n        u64, little-endian
    ├─ header   n bytes of JSON: {name: {"dtype", "shape", "data_offsets": [from, to]}, …}
    └─ data     from the end of the header on, offsets counted from there

Source: huggingface/safetensors, README. Rows are read with `read`, not mapped: mapped pages of a
large file count as this process's memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....ops.arrays import F32, U8
from ...errors import ConvertError
from .jsons import brief, parse_json

MAX_HEADER = 16 << 20  # bytes; the largest models have some 100 for each of 2,000 tensors
MAX_DIMS = 8

_STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
BYTES = "U8"
"""The type of weights that are packed already."""
_SIZES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a safetensors file; all but the last dimension count as rows."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Place of its first byte in the file."""

    @property
    def n_rows(self) -> int:
        """Product of all dimensions but the last; 1 for a vector."""
        return math.prod(self.shape[:-1])

    def rows(self, first: int, stop: int) -> F32:
        """Rows first .. stop - 1 as float32 (stop - first, n_columns).

        Raises `ConvertError` for a type that holds no plain weights and for a file cut short.
        """
        if self.dtype not in _STORED:
            raise ConvertError(
                f"{self.path.name}: {self.name} is stored as {self.dtype}, expected one of "
                f"{', '.join(_STORED)}: kvarn converts unquantised models"
            )
        raw = self._read(first, stop, _STORED[self.dtype])
        if self.dtype == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.astype(np.float32, copy=False)

    def bytes_of_rows(self, first: int, stop: int) -> U8:
        """Rows first .. stop - 1 of a tensor of `BYTES`, (stop - first, n_columns)."""
        return self._read(first, stop, "u1")

    def _read(self, first: int, stop: int, dtype: str) -> NDArray[Any]:
        n_columns, size = self.shape[-1], _SIZES[self.dtype]
        n = (stop - first) * n_columns
        raw = np.fromfile(self.path, dtype, n, offset=self.offset + first * n_columns * size)
        if len(raw) != n:
            raise ConvertError(f"{self.path.name}: the file ends within {self.name}")
        return raw.reshape(stop - first, n_columns)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name, none of them read yet.

    Raises `ConvertError` for a file that is no safetensors file, damaged, or cut short.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        n_header = int.from_bytes(file.read(8), "little")
        if size < 8 or n_header > min(MAX_HEADER, size - 8):
            raise ConvertError(
                f"{path.name}: not a safetensors file, or cut short: header of {n_header} bytes in "
                f"a file of {size}"
            )
        header = parse_json(file.read(n_header), f"{path.name}: the safetensors header")
    header.pop("__metadata__", None)
    data, n_data = 8 + n_header, size - 8 - n_header
    return {name: _tensor(path, name, entry, data, n_data) for name, entry in header.items()}


def _tensor(path: Path, name: str, entry: Any, data: int, n_data: int) -> StoredTensor:
    entry = entry if isinstance(entry, Mapping) else {}
    dtype, shape, span = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not (isinstance(dtype, str) and dtype in _SIZES and _are_counts(shape)):
        raise ConvertError(f"{path.name}: {name} has dtype {brief(dtype)} and shape {brief(shape)}")
    if not (_are_counts(span) and len(span) == 2):
        raise ConvertError(f"{path.name}: {name} has data_offsets {brief(span)}")
    start, end = span
    if end - start != math.prod(shape) * _SIZES[dtype] or end > n_data:
        raise ConvertError(
            f"{path.name}: {name}, {dtype} {shape}, cannot lie at bytes {start} to {end} of "
            f"{n_data}: the file is damaged or cut short"
        )
    return StoredTensor(path, name, dtype, tuple(shape), data + start)


def _are_counts(values: Any) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= MAX_DIMS
        and all(type(v) is int and 0 <= v < 1 << 63 for v in values)
    )
