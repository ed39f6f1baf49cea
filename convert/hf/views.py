"""Tensors of the file to be, made of stored ones: parts, other orders, stacks. Rows are read on
demand, so that none of them is ever whole in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ops.arrays import F32, I64
from .files.safetensors import BYTES, StoredTensor

Rows = Callable[[int, int], NDArray[Any]]
"""(first, stop) → rows first .. stop - 1, contiguous: float32 (stop - first, columns), or uint8
(stop - first, bytes of a row) where they are encoded already."""

_NEAR = 8
"""Rows up to this far apart are read in one go."""


@dataclass(frozen=True)
class View:
    """A tensor whose rows can be read."""

    shape: tuple[int, ...]
    """(…, rows, columns), or (length,), which is one row."""
    rows: Rows
    type_name: str | None = None
    """The type of rows that are bytes: one of the file, or `BYTES`; None: they are float32."""

    @staticmethod
    def of(tensor: StoredTensor) -> View:
        """A stored tensor as it is."""
        if tensor.dtype == BYTES:
            return View(tensor.shape, tensor.bytes_of_rows, BYTES)
        return View(tensor.shape, tensor.rows)

    @property
    def n_rows(self) -> int:
        return math.prod(self.shape[:-1])


Views = Mapping[str, View]
"""By transformers' names, or by those of the file."""


def from_values(values: F32) -> View:
    """A vector of values that were computed."""
    return View(values.shape, lambda first, stop: values.reshape(1, -1)[first:stop])


def mapped(view: View, function: Callable[[F32], F32]) -> View:
    """function(x) of every weight x."""
    return replace(view, rows=lambda first, stop: function(view.rows(first, stop)))


def multiplied(view: View, factors: Sequence[NDArray[np.float32]]) -> View:
    """Every weight times each of the factors, one after the other: of each row, or one of all."""

    def read(first: int, stop: int) -> NDArray[np.float32]:
        x = view.rows(first, stop)
        for factor in factors:
            x = x * (factor if len(factor) == 1 else factor[first:stop, None])
        return x

    return replace(view, rows=read) if factors else view


def reshaped(view: View, *shape: int) -> View:
    """The same weights in other rows of the same length, or one row of all (of a vector)."""
    if len(shape) > 1 or len(view.shape) == 1:
        return replace(view, shape=shape)

    def read(first: int, stop: int) -> NDArray[Any]:
        return view.rows(0, view.n_rows).reshape(1, -1)[first:stop]

    return View(shape, read, view.type_name)


def in_order(view: View, order: I64, *leading: int) -> View:
    """Row i of the result is row order[i]; for a vector, its values. leading: the sizes of all
    dimensions of the result but the last (default: one of all rows)."""
    if len(view.shape) == 1:
        return columns(view, order)

    def read(first: int, stop: int) -> NDArray[Any]:
        wanted = order[first:stop]
        ranks = np.unique(wanted)
        runs = np.split(ranks, np.flatnonzero(np.diff(ranks) > _NEAR) + 1)
        parts = [view.rows(int(run[0]), int(run[-1]) + 1)[run - run[0]] for run in runs]
        return np.concatenate(parts)[np.searchsorted(ranks, wanted)]

    return View((*(leading or (len(order),)), view.shape[-1]), read, view.type_name)


def columns(view: View, order: I64) -> View:
    """Column i of the result is column order[i]."""

    def read(first: int, stop: int) -> NDArray[Any]:
        return np.ascontiguousarray(view.rows(first, stop)[:, order])

    return replace(view, shape=(*view.shape[:-1], len(order)), rows=read)


def part(view: View, rows: slice) -> View:
    """Some rows of each matrix (…, rows, columns)."""
    chosen = np.arange(view.n_rows).reshape(view.shape[:-1])[..., rows]
    return in_order(view, chosen.ravel(), *chosen.shape)


def transposed(view: View) -> View:
    """Matrices (n, rows, columns) as (n, columns, rows); those asked for are read whole."""
    n, n_rows, n_columns = view.shape

    def read(first: int, stop: int) -> NDArray[Any]:
        start, end = first // n_columns, -(-stop // n_columns)
        whole = view.rows(start * n_rows, end * n_rows).reshape(-1, n_rows, n_columns)
        turned = np.ascontiguousarray(whole.swapaxes(1, 2)).reshape(-1, n_rows)
        return turned[first - start * n_columns : stop - start * n_columns]

    return View((n, n_columns, n_rows), read)


def stacked(views: Sequence[View]) -> View:
    """Tensors of one shape as one with a dimension more, the first."""
    each = views[0].n_rows

    def read(first: int, stop: int) -> NDArray[Any]:
        parts = [
            views[i].rows(max(0, first - i * each), min(each, stop - i * each))
            for i in range(first // each, -(-stop // each))
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return View((len(views), *views[0].shape), read, views[0].type_name)
