"""The old way of wiring, until every kernel is declared by name. Imports no Numba."""

from __future__ import annotations

from importlib import import_module
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import JitError
from .graph import recording
from .lazy import lazy_kernel, lazy_kernels


def parse(kinds: str) -> list[tuple[np.dtype[Any], int]]:
    """Type and number of dimensions of each array of a table."""
    parts = (kind.partition(":") for kind in kinds.split())
    return [(np.dtype(name), int(ndim or 1)) for name, _, ndim in parts]


class Table:
    """The arrays of a step, found by one address; they live as long as the table holds them."""

    def __init__(self, kinds: str) -> None:
        self._kinds = parse(kinds)
        ends = list(accumulate((1 + ndim for _, ndim in self._kinds), initial=0))
        self._places = [slice(*place) for place in pairwise(ends)]
        self._words = np.zeros(ends[-1], np.int64)
        self.held: tuple[NDArray[Any], ...] = ()
        self.address = int(self._words.ctypes.data)

    def __call__(self, *arrays: NDArray[Any]) -> int:
        """Hold these arrays from now on; gives the table's address.

        Raises JitError for arrays that are not what the table is for, and while a graph is
        recorded, whose steps would all find the last ones.
        """
        if recording():
            raise JitError("recording a step with arrays that the next one replaces")
        if len(arrays) != len(self._kinds):
            raise JitError(f"a table of {len(self._kinds)} arrays, not of {len(arrays)}")
        # From layer to layer most stay: looking at each would cost a token of many layers 0.5 ms.
        held = self.held or (None,) * len(arrays)
        others = [i for i, x in enumerate(arrays) if x is not held[i]]
        for i in others:
            x, (dtype, ndim) = arrays[i], self._kinds[i]
            if x.dtype != dtype or x.ndim != ndim or not x.flags.c_contiguous:
                raise JitError(
                    f"array {i} of a table is {x.dtype} {x.shape}, expected {dtype} of {ndim} "
                    "dimensions, contiguous"
                )
        for i in others:
            self._words[self._places[i]] = arrays[i].ctypes.data, *arrays[i].shape
        self.held = arrays
        return self.address


def kernel(module, name):
    def find():
        return getattr(import_module(module), name)

    find.__module__, find.__qualname__, find.__name__ = module, name, name
    return lazy_kernel(find)


def kernels(module, name):
    def find(*parameters):
        return getattr(import_module(module), name)(*parameters)

    find.__module__, find.__qualname__, find.__name__ = module, name, name
    return lazy_kernels(find)
