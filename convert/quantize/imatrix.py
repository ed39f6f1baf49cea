"""Importance matrices: how large the inputs of each matrix are, column by column.

A matrix adds the error Σ_j (w_j - decoded_j)² E[x_j²] to its output, if its inputs x_j are not
correlated: the mean squares of the inputs tell which columns to keep exact. Files are llama.cpp's:

    GGUF, general.type = "imatrix"
      imatrix.datasets     strings   names of the texts
      imatrix.chunk_count  u32       pieces of text, of imatrix.chunk_size tokens (u32)
      NAME.in_sum2         f32 (matrices, columns)   Σ x² over the tokens read
      NAME.counts          f32 (matrices, 1)         how many there were

    before GGUF (".dat"), little-endian
      i32 entries; each: i32 bytes of name, name, i32 calls, i32 values, f32 mean squares x calls
      i32 calls, i32 bytes of dataset, dataset       (may be missing)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...ops.arrays import F32, F64, I64
from ...runtime.gguf import GGUFFile, open_gguf
from ...runtime.gguf.layout import MAGIC
from ...system.files import new_file
from ...system.reading import read_file, read_start
from ..errors import ConvertError
from ..writing import TensorPlan, header, pad, value_bytes

_SUMS, _COUNTS = ".in_sum2", ".counts"
_MOST_BYTES = 8 << 30  # those of models of many experts come to 1 GB
_I32, _I32_MAX = struct.Struct("<i"), (1 << 31) - 1


@dataclass(frozen=True)
class Imatrix:
    """Mean squares of the inputs by name of tensor, float32 (matrices, columns)."""

    means: Mapping[str, F32]
    datasets: tuple[str, ...] = ()
    n_chunks: int = 0


def read_imatrix(path: Path) -> Imatrix:
    """Read a file of either format.

    Raises `GGUFError` or `ConvertError` for a file of another kind or a damaged one.
    """
    matrix = _read_gguf(path) if read_start(path, 4) == MAGIC else _read_dat(path)
    for name, means in matrix.means.items():
        if not (np.isfinite(means).all() and (means >= 0).all()):
            raise ConvertError(
                f"{path}: {name}: found values that are negative or not finite, expected mean"
                " squares"
            )
    if not matrix.means:
        raise ConvertError(f"{path}: an importance matrix of no tensors")
    return matrix


def write_imatrix(
    path: Path,
    sums: Mapping[str, F64],
    counts: Mapping[str, I64],
    datasets: list[str],
    n_chunks: int,
    chunk_size: int,
) -> None:
    """Write sums of squares (matrices, columns) over `counts` (matrices,) tokens; the file appears
    whole or not at all.

    llama.cpp's tools read it too.
    """
    arrays: list[tuple[TensorPlan, F32]] = []
    for name in sorted(sums):
        values = sums[name].astype(np.float32)
        arrays.append((TensorPlan(name + _SUMS, "F32", values.shape), values))
        count = counts[name].astype(np.float32).reshape(-1, 1)
        arrays.append((TensorPlan(name + _COUNTS, "F32", count.shape), count))
    metadata = {
        "general.type": value_bytes("imatrix"),
        "imatrix.datasets": value_bytes(datasets),
        "imatrix.chunk_count": value_bytes(n_chunks),
        "imatrix.chunk_size": value_bytes(chunk_size),
    }
    with new_file(path) as part, part.open("r+b") as file:
        file.write(header(metadata, [plan for plan, _ in arrays]))
        for _, values in arrays:
            file.write(values.tobytes())
            pad(file)


def _read_gguf(path: Path) -> Imatrix:
    with open_gguf(path) as file:
        if file.get("general.type", str, "") != "imatrix":
            raise ConvertError(
                f"{path}: found a GGUF file of another kind, expected general.type 'imatrix'"
            )
        means = {}
        for name in file.tensors:
            if name.endswith(_SUMS):
                stem = name.removesuffix(_SUMS)
                sums = _floats(file, name)
                counts = _floats(file, stem + _COUNTS).reshape(-1, 1)
                means[stem] = _means(path, stem, sums, counts)
        return Imatrix(
            means,
            tuple(file.get("imatrix.datasets", list, [])),
            file.get("imatrix.chunk_count", int, 0),
        )


def _floats(file: GGUFFile, name: str) -> F32:
    """A tensor of the file as (rows, columns)."""
    tensor = file.tensors.get(name)
    if tensor is None or tensor.type.name != "F32":
        found = "no such tensor" if tensor is None else tensor.type.name
        raise ConvertError(f"{file.path}: tensor {name}: found {found}, expected F32")
    return tensor.data.view(np.float32).reshape(-1, tensor.shape[-1])


def _means(path: Path, name: str, sums: F32, counts: F32) -> F32:
    """sums / counts; 1 for matrices of experts that no token came to."""
    if len(sums) % len(counts):
        raise ConvertError(
            f"{path}: {name}: found {len(counts)} counts for {len(sums)} matrices, expected as many"
        )
    counts = np.repeat(counts, len(sums) // len(counts), axis=0)
    means: F32 = np.where(counts > 0, sums / np.maximum(counts, 1), np.float32(1))
    return means


def _read_dat(path: Path) -> Imatrix:
    data, at = read_file(path, _MOST_BYTES), 0

    def number(field: str, item_bytes: int = 0) -> int:
        """The next number; if it counts items of `item_bytes`, the file must have room for them."""
        nonlocal at
        if at + 4 > len(data):
            raise ConvertError(f"{path}: {field}: the file ends; expected an importance matrix")
        value: int = _I32.unpack_from(data, at)[0]
        at += 4
        most = (len(data) - at) // item_bytes if item_bytes else _I32_MAX
        if not 0 <= value <= most:
            raise ConvertError(
                f"{path}: {field}: found {value:,}, expected 0 to {most:,}; is this an importance"
                " matrix?"
            )
        return value

    def take(n_bytes: int) -> bytes:
        nonlocal at
        at += n_bytes
        return data[at - n_bytes : at]

    means = {}
    for i in range(number("entries", 12)):
        entry = f"entry {i}"
        name = take(number(f"{entry}: length of the name", 1)).decode("utf-8", "replace")
        calls = number(f"{entry}: calls")
        values = np.frombuffer(take(4 * number(f"{entry}: values", 4)), np.float32)
        means[name] = (values / np.float32(max(calls, 1))).reshape(1, -1)
    if at == len(data):
        return Imatrix(means)
    n_chunks = number("calls")
    dataset = take(number("length of the dataset", 1)) if at < len(data) else b""
    names = (dataset.decode("utf-8", "replace"),) if dataset else ()
    return Imatrix(means, names, n_chunks)
