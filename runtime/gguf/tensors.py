"""The tensors of a GGUF file, as the header describes them, checked against the file's size."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ...ops.arrays import U8
from ...ops.types import BY_ID, WITHDRAWN, QuantType
from ...system.text import shown
from .layout import MAX_DIMS, MAX_TENSOR_NAME_BYTES
from .source import TRUNCATED, Cursor, Source


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as it lies in the file; `shape` in NumPy's order: (…, rows, columns)."""

    name: str
    type: QuantType
    shape: tuple[int, ...]
    n_bytes: int
    offset: int
    """First byte, from the start of the file."""
    source: Source

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def data(self) -> U8:
        """uint8[…, rows, bytes of a row]: a read-only view of the mapped file."""
        flat = np.frombuffer(self.source.view, np.uint8, self.n_bytes, self.offset)
        return flat.reshape(*self.shape[:-1], self.n_bytes // math.prod(self.shape[:-1]))

    def release(self) -> None:
        """Drop its pages from memory; `data` stays valid and is read from the file again."""
        self.source.release(self.offset, self.n_bytes)


def read_tensors(cursor: Cursor, n_tensors: int, alignment: int) -> list[Tensor]:
    """Read the tensor section and place every tensor.

    Raises GGUFError unless names are unique, rows whole blocks, offsets aligned, and tensors inside
    the file and apart from one another.
    """
    infos = [_read_info(cursor, i, alignment) for i in range(n_tensors)]
    begin = -(-cursor.position // alignment) * alignment
    source = cursor.source
    end, before, names = begin, "", set()
    for info in sorted(infos, key=lambda info: info.offset):
        field = f"tensor {shown(info.name)}"
        if info.name in names:
            raise source.error(field, "the name twice", "every tensor once")
        names.add(info.name)
        start = begin + info.offset
        if start < end:
            raise source.error(
                f"{field}: offset",
                f"{info.offset:,}, inside tensor {shown(before)}",
                "tensors that do not overlap",
            )
        end, before = start + info.n_bytes, info.name
        if end > source.size:
            raise source.error(
                f"{field}: data", f"a file of {source.size:,} bytes", f"at least {end:,}", TRUNCATED
            )
    return [replace(info, offset=begin + info.offset) for info in infos]


def _read_info(cursor: Cursor, i: int, alignment: int) -> Tensor:
    """Tensor number `i`, its offset from the start of the data."""
    name = cursor.name(f"tensor {i}: name", MAX_TENSOR_NAME_BYTES)
    field = f"tensor {shown(name)}"
    error = cursor.source.error
    n_dims = cursor.u32(f"{field}: n_dims")
    if not 1 <= n_dims <= MAX_DIMS:
        raise error(f"{field}: n_dims", str(n_dims), f"1 to {MAX_DIMS}")
    dims = tuple(cursor.size_t(f"{field}: dims") for _ in range(n_dims))
    type_id = cursor.u32(f"{field}: type")
    offset = cursor.u64(f"{field}: offset")
    quant_type = BY_ID.get(type_id)
    if quant_type is None:
        found = f"{type_id} ({WITHDRAWN[type_id]}, withdrawn)" if type_id in WITHDRAWN else type_id
        raise error(f"{field}: type", str(found), "a type that kvarn knows", "convert it anew")
    if 0 in dims:
        raise error(f"{field}: dims", str(dims), "no dimension of 0")
    n_blocks, rest = divmod(dims[0], quant_type.block)
    if rest:
        raise error(
            f"{field}: dims",
            f"rows of {dims[0]:,} weights",
            f"a multiple of {quant_type.block}, the block of {quant_type.name}",
        )
    n_bytes = n_blocks * quant_type.n_bytes * math.prod(dims[1:])
    if n_bytes > cursor.size:
        raise error(
            f"{field}: dims",
            f"{dims} of {quant_type.name}, {n_bytes:,} bytes",
            f"at most the file's {cursor.size:,}",
            TRUNCATED,
        )
    if offset % alignment:
        raise error(f"{field}: offset", f"{offset:,}", f"a multiple of the alignment, {alignment}")
    return Tensor(name, quant_type, dims[::-1], n_bytes, offset, cursor.source)
