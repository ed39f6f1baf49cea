"""GGUF to GGUF: the same model with its matrices in other types.

Reads, decodes, encodes and writes a few megabytes of rows at a time: memory does not grow with the
model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from gguf import GGML_QUANT_VERSION

from ...models.config import refuse_adapter
from ...ops.arrays import F32, U8
from ...ops.linear import Weight, get_rows
from ...ops.reference.quants import dequantise
from ...ops.types import QUANT_TYPES
from ...runtime.attend.encoders.sidecar import is_hash_key
from ...runtime.engine import on_engine
from ...runtime.gguf import GGUFError, GGUFFile, Tensor, open_gguf
from ...system.files import check_target, new_file
from ..errors import ConvertError
from ..writing import TensorPlan, check_room, copied_metadata, header, padded, value_bytes
from .encode import EncodeError, encode
from .imatrix import Imatrix
from .mixes import Mix, ModelFacts, tensor_types

Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes to read)."""

_SLAB = 1 << 20  # weights that are in memory at a time: 4 MB as floats, which caches hold
_FLOATS = ("F32", "F16", "BF16")
_MAX_NAME = 127  # bytes of a name that llama.cpp keeps in quantize.imatrix.*


@dataclass
class Report:
    """A report of the written file."""

    n_bytes: int
    """Size of the file."""
    n_tensor_bytes: int
    n_parameters: int
    types: Counter[str] = field(default_factory=Counter)
    """Tensors by type."""
    n_odd: int = 0
    """Matrices that got another type, because the mix's blocks do not divide their rows."""
    dropped_encoders: bool = False
    """Whether the source had hash encoders, which belong to its weights as they are."""
    unweighted: list[str] = field(default_factory=list)
    """Matrices of layers that were encoded without importances although others have some."""


def quantise_file(
    source: Path,
    target: Path,
    mix: Mix,
    imatrix: tuple[Path, Imatrix] | None = None,
    allow_requantise: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Write the model `source` (or all shards, by any of them) to `target` in the types of `mix`.

    Metadata stay as they are, except what describes the types. Hash encoders are left out: they
    belong to the weights of the source. `target` appears whole or not at all. allow_requantise:
    matrices may be decoded from quantised types, which adds their errors. Raises `GGUFError` for a
    file that cannot be read; `ModelError` for an adapter; `ConvertError` for a file that must not
    be quantised so, or where there is no room; `FileRefused` for a target that is no regular file;
    OSError where writing fails.
    """
    check_target(target)
    with open_gguf(source) as file:
        refuse_adapter(file.metadata)
        if any(target.exists() and target.samefile(path) for path in file.paths):
            raise ConvertError(f"{target} is the file to read from: write to another one")
        if not file.tensors:
            raise ConvertError(f"{source}: the file holds no tensors, only metadata")
        entries = imatrix[1].means if imatrix else {}
        plans = _plans(file, mix, bool(imatrix))
        n_tensor_bytes = sum(plan.n_bytes for plan in plans)
        types = Counter(plan.type_name for plan in plans)
        report = Report(0, n_tensor_bytes, file.n_parameters, types)
        report.dropped_encoders = any(map(is_hash_key, file.metadata))
        block = QUANT_TYPES[mix.type_name].block
        for plan in plans:
            report.n_odd += plan.n_rows > 1 and plan.shape[-1] % block > 0
            _check(file.tensors[plan.name], plan, entries, allow_requantise, report)
        head = header(_metadata(file, mix, imatrix), plans, file.alignment)
        report.n_bytes = len(head) + sum(padded(plan.n_bytes, file.alignment) for plan in plans)
        with new_file(target) as part:
            check_room(target.parent, report.n_bytes, str(target))
            with part.open("r+b", buffering=0) as out:
                write = _Writer(out, target)
                write(head)
                _write_tensors(file, plans, entries, write, progress)
        return report


class _Writer:
    """Writes whole pieces; an OSError names the file that was to be."""

    def __init__(self, file: BinaryIO, target: Path) -> None:
        self._file, self._target = file, target

    def __call__(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            error.filename = str(self._target)
            raise


def _plans(file: GGUFFile, mix: Mix, with_importance: bool) -> list[TensorPlan]:
    """The tensors to write, in the order of the file."""
    shapes = {tensor.name: tensor.shape for tensor in file.tensors.values()}
    types = tensor_types(mix, shapes, ModelFacts.of(file), with_importance)
    return [
        TensorPlan(tensor.name, types.get(tensor.name, tensor.type.name), tensor.shape)
        for tensor in file.tensors.values()
    ]


def _check(
    tensor: Tensor,
    plan: TensorPlan,
    entries: Mapping[str, F32],
    allow_requantise: bool,
    report: Report,
) -> None:
    """Refuse what would fail later or lose quality silently."""
    if tensor.type.name == plan.type_name:
        return
    if tensor.type.treatment == "unsupported":
        raise ConvertError(
            f"tensor {tensor.name}: found type {tensor.type.name}, which holds no weights that can"
            " be quantised"
        )
    if tensor.type.name not in _FLOATS and not allow_requantise:
        raise ConvertError(
            f"tensor {tensor.name} is quantised already ({tensor.type.name}), and its errors would"
            f" add to those of {plan.type_name}: start from an F16, BF16 or F32 file, or use"
            " --allow-requantize"
        )
    means = entries.get(tensor.name)
    if means is None:
        # Importance matrices, llama.cpp's and kvarn's, only have entries for matrices of layers.
        in_block = plan.name.startswith("blk.")
        if entries and in_block and plan.type_name not in (*_FLOATS, "Q8_0"):
            report.unweighted.append(tensor.name)
        return
    expected = (_n_matrices(tensor), tensor.shape[-1])
    if means.size != expected[0] * expected[1] or means.shape[-1] not in (expected[1], means.size):
        raise ConvertError(
            f"tensor {tensor.name}: found importances {means.shape}, expected {expected}: is the"
            " importance matrix of another model?"
        )


def _n_matrices(tensor: Tensor) -> int:
    """Experts, or 1."""
    return tensor.shape[0] if len(tensor.shape) == 3 else 1


def _metadata(file: GGUFFile, mix: Mix, imatrix: tuple[Path, Imatrix] | None) -> dict[str, bytes]:
    added: dict[str, int | str] = {
        "general.quantization_version": GGML_QUANT_VERSION,
        "general.file_type": int(mix.file_type),
    }
    if imatrix is not None:
        path, matrix = imatrix
        added["quantize.imatrix.file"] = _shortened(str(path))
        if matrix.datasets:
            added["quantize.imatrix.dataset"] = _shortened(matrix.datasets[0])
        added["quantize.imatrix.entries_count"] = len(matrix.means)
        if matrix.n_chunks > 0:
            added["quantize.imatrix.chunks_count"] = matrix.n_chunks
    values = {key: value_bytes(value) for key, value in added.items()}
    return copied_metadata(file.metadata) | values


def _shortened(text: str) -> str:
    data = text.encode("utf-8", "surrogateescape")[:_MAX_NAME]
    return data.decode("utf-8", "ignore")


def _write_tensors(
    file: GGUFFile,
    plans: list[TensorPlan],
    entries: Mapping[str, F32],
    write: _Writer,
    progress: Progress | None,
) -> None:
    total, done = sum(tensor.n_bytes for tensor in file.tensors.values()), 0
    with ExitStack() as stack:
        shards = {path: stack.enter_context(path.open("rb", buffering=0)) for path in file.paths}
        for plan in plans:
            tensor = file.tensors[plan.name]
            shard = shards[tensor.source.path]
            shard.seek(tensor.offset)
            for rows in _slabs(tensor):
                data = _read(shard, tensor, rows)
                write(_in_type(tensor, plan, rows, data, entries).data)
                done += data.nbytes
                if progress is not None:
                    progress(done, total)
            write(bytes(padded(plan.n_bytes, file.alignment) - plan.n_bytes))


def _slabs(tensor: Tensor) -> list[slice]:
    """Rows that are in memory at a time; never of two experts, which differ in importances."""
    n_cols = tensor.shape[-1]
    n_rows = tensor.n_elements // n_cols
    each, step = n_rows // _n_matrices(tensor), max(1, _SLAB // n_cols)
    return [
        slice(start, min(start + step, first + each))
        for first in range(0, n_rows, each)
        for start in range(first, first + each, step)
    ]


def _read(shard: BinaryIO, tensor: Tensor, rows: slice) -> U8:
    """Bytes of rows, uint8 (rows, bytes of a row). Not from the mapping: its pages would stay."""
    row_bytes = tensor.n_bytes // (tensor.n_elements // tensor.shape[-1])
    n_bytes = (rows.stop - rows.start) * row_bytes
    data = np.fromfile(shard, np.uint8, n_bytes)
    if data.size < n_bytes:
        raise GGUFError(
            tensor.source.path,
            f"tensor {tensor.name}",
            "a file that has become shorter",
            f"{tensor.n_bytes:,} bytes from {tensor.offset:,}",
        )
    return data.reshape(-1, row_bytes)


def _in_type(
    tensor: Tensor, plan: TensorPlan, rows: slice, data: U8, entries: Mapping[str, F32]
) -> U8:
    """Rows in the planned type."""
    if tensor.type.name == plan.type_name:
        return data
    means = entries.get(tensor.name)
    if means is not None:
        each = tensor.n_elements // tensor.shape[-1] // _n_matrices(tensor)
        means = means.reshape(_n_matrices(tensor), -1)[rows.start // each]
    try:
        return encode(_decoded(tensor, data), plan.type_name, means)
    except EncodeError as error:
        raise ConvertError(f"tensor {tensor.name}, rows from {rows.start}: {error}") from error


def _decoded(tensor: Tensor, data: U8) -> F32:
    """Rows as float32."""
    n_cols = tensor.shape[-1]
    if tensor.type.name == "F32":
        return data.view(np.float32)
    if tensor.type.treatment == "re-encoded":
        return dequantise(tensor.type, data)
    out = np.empty((len(data), n_cols), np.float32)
    weight = Weight.prepare(tensor.type, data, n_cols, tensor.name)
    on_engine(get_rows, weight, np.arange(len(data), dtype=np.int32), out)
    return out
