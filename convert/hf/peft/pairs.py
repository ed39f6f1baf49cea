"""The matrices A and B of an adapter by the names of the file to be, their rows read on demand.

A rule for a model's matrix W (N, K) that moves rows moves those of B (N, R), one that moves columns
those of A (R, K). So each matrix goes through the model's rules as numbers of its rows and of its
columns, of which W has as many, and the numbers that come out say what to take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ....ops.arrays import I64
from ....system.text import one_line
from ...errors import ConvertError
from ..files.safetensors import StoredTensor
from ..tensors import is_drafting, is_multimodal, plain_name, renamed
from ..views import View, columns, in_order, mapped, multiplied
from .base import Base
from .settings import MAX_NAME, AdapterSettings

PREFIX = "base_model.model."
_ENDS = (".lora_A.weight", ".lora_B.weight")
_UNKNOWN = {
    "lora_magnitude_vector": "DoRA's magnitudes",
    "lora_embedding_": "a low-rank change of the embedding",
    ".bias": "a bias",
}
_SHIFT = 32  # rows and columns have fewer bits
_AT_ONCE = 1 << 22  # numbers


class Pair(NamedTuple):
    """A and B of a module as they are stored."""

    module: str
    """Its name in transformers' model."""
    a: StoredTensor
    b: StoredTensor


class FilePair(NamedTuple):
    """A (R, K) and B (N, R) of a tensor of the file, whose readers scale by its alpha / R."""

    name: str
    a: View
    b: View


def stored_pairs(tensors: Mapping[str, StoredTensor], base: Base) -> tuple[list[Pair], int]:
    """The pairs of an adapter, and how many tensors are left out: of what sees, hears or drafts
    tokens, and copies of the model's own matrices.

    Raises `ConvertError` for any other tensor, half a pair, and sizes that do not fit each other.
    """
    halves: dict[str, list[StoredTensor | None]] = {}
    n_left_out = 0
    for name, tensor in tensors.items():
        module, end = name.removeprefix(PREFIX)[:-14], name[-14:]
        if _is_left_out(name.removeprefix(PREFIX), base):
            n_left_out += 1
        elif not name.startswith(PREFIX) or end not in _ENDS:
            raise ConvertError(f"the adapter has tensor {_described(name)}")
        elif ".experts." in name:
            raise ConvertError(
                f"the adapter changes routed experts ({one_line(module, 200)}), expected matrices "
                "of attention, of dense feed-forwards or of the output"
            )
        else:
            halves.setdefault(module, [None, None])[_ENDS.index(end)] = tensor
    pairs = [_pair(module, *both) for module, both in halves.items()]
    if not pairs:
        raise ConvertError(f"the adapter has no tensors {PREFIX}NAME{_ENDS[0]} of a text model")
    return pairs, n_left_out


def _is_left_out(name: str, base: Base) -> bool:
    drafting = is_drafting(name, base.config)
    return drafting or is_multimodal(name) or name.endswith(".base_layer.weight")


def _described(name: str) -> str:
    kind = next((kind for part, kind in _UNKNOWN.items() if part in name), None)
    expected = f"expected {PREFIX}NAME{_ENDS[0]} and {_ENDS[1]} alone"
    return f"{one_line(name, 200)}{f', {kind}' if kind else ''}: {expected}"


def _pair(module: str, a: StoredTensor | None, b: StoredTensor | None) -> Pair:
    if a is None or b is None:
        missing = f"{module}{_ENDS[0 if a is None else 1]}"
        raise ConvertError(f"the adapter lacks tensor {PREFIX}{one_line(missing, 200)}")
    if len(module) > MAX_NAME:
        raise ConvertError(
            f"the adapter changes {one_line(module, 80)}, a name of {len(module)} characters, "
            f"expected at most {MAX_NAME}"
        )
    fits = len(a.shape) == len(b.shape) == 2 and a.shape[0] == b.shape[1]
    if not fits or 0 in (*a.shape, *b.shape):
        raise ConvertError(
            f"{one_line(module, 200)} has lora_A {a.shape} and lora_B {b.shape}, expected (r, "
            "columns) and (rows, r)"
        )
    return Pair(module, a, b)


def file_pairs(pairs: list[Pair], base: Base, settings: AdapterSettings) -> list[FilePair]:
    """The pairs by the file's names, in its order of rows and columns, scaled for its alpha.

    Raises `ConvertError` for a matrix that the model's file does not have, or not of these sizes,
    and for a rank other than that of the settings.
    """
    by_row, by_column = {}, {}
    for index, pair in enumerate(pairs):
        _check_pair(pair, base, settings)
        shape = pair.b.shape[0], pair.a.shape[1]
        name = f"{plain_name(pair.module)}.weight"
        if name in by_row:
            raise ConvertError(f"the adapter changes {one_line(name, 200)} twice")
        by_row[name] = _numbered(shape, index, 0)
        by_column[name] = _numbered(shape, index, 1)
    made = []
    rows_and_columns = zip(
        renamed(base.architecture, base.config, by_row),
        renamed(base.architecture, base.config, by_column),
        strict=True,
    )
    for of_rows, of_columns in rows_and_columns:
        if len(of_rows.view.shape) != 2 or not of_rows.name.endswith(".weight"):
            raise ConvertError(
                f"the adapter changes {of_rows.name}, which is no matrix in files of "
                f"{base.architecture.name}"
            )
        index, rows = _taken(_first_column(of_rows.view))
        _, cols = _taken(of_columns.view.rows(0, 1)[0])
        pair = pairs[index]
        a, b = View.of(pair.a), View.of(pair.b)
        rank = pair.a.shape[0]
        factor = settings.scale_of(pair.module) * rank / settings.file_alpha
        if base.architecture.factors is not None:
            name = f"{plain_name(pair.module)}.weight"
            b = multiplied(b, base.architecture.factors(base.config, name, b.shape[0]))
        b = b if _counts_up(rows, b.shape[0]) else in_order(b, rows)
        a = a if _counts_up(cols, a.shape[1]) else columns(a, cols)
        made.append(FilePair(of_rows.name, a, _times(b, factor)))
    _check_shapes(made, base)
    return made


def _check_pair(pair: Pair, base: Base, settings: AdapterSettings) -> None:
    name, rank = one_line(pair.module, 200), pair.a.shape[0]
    if rank != settings.rank_of(pair.module):
        raise ConvertError(
            f"{name} has rank {rank}, expected {settings.rank_of(pair.module)} by "
            "adapter_config.json"
        )
    shared = base.architecture.drops_output or base.config.flag("tie_word_embeddings")
    if shared and plain_name(pair.module) == "lm_head":
        raise ConvertError(
            f"the adapter changes {name}, and the model shares its matrix with the embedding, "
            "which a GGUF adapter cannot change alone"
        )


def _numbered(shape: tuple[int, int], index: int, axis: int) -> View:
    """A matrix of the numbers of its rows or columns, above them that of the matrix."""
    start = index << _SHIFT

    def read(first: int, stop: int) -> I64:
        numbers = np.arange(first, stop)[:, None] if axis == 0 else np.arange(shape[1])
        return np.broadcast_to(start + numbers, (stop - first, shape[1]))

    return View(shape, read)


def _first_column(view: View) -> I64:
    step = max(1, _AT_ONCE // view.shape[1])
    firsts = range(0, view.n_rows, step)
    return np.concatenate(
        [view.rows(first, min(first + step, view.n_rows))[:, 0] for first in firsts]
    )


def _taken(numbers: I64) -> tuple[int, I64]:
    """The number of a matrix, and those of its rows or columns."""
    return int(numbers[0] >> _SHIFT), numbers & ((1 << _SHIFT) - 1)


def _counts_up(order: I64, n: int) -> bool:
    return bool(np.array_equal(order, np.arange(n)))


def _times(view: View, factor: float) -> View:
    """The weights times a factor; as they are where it is 1, but for rounding."""
    if abs(factor - 1) < 1e-12:
        return view
    return mapped(view, lambda x: x * np.float32(factor))


def _check_shapes(made: list[FilePair], base: Base) -> None:
    if base.shapes is None:
        return
    for pair in made:
        expected = base.shapes.get(pair.name)
        shape = pair.b.shape[0], pair.a.shape[1]
        if expected != shape:
            has = "which is not there" if expected is None else f"which has shape {expected}"
            raise ConvertError(
                f"the adapter changes {pair.name}, of shape {shape}, {has} in "
                f"{one_line(base.name, 300)}: expected the model that it was trained on"
            )
