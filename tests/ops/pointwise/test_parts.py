"""Copies of parts of rows against NumPy, at odd sizes."""

from __future__ import annotations

import numpy as np
import pytest

from kvarn.ops.errors import OpsError
from kvarn.ops.pointwise.parts import copy_part

SIZES = [(1, 1, 1), (3, 2, 15), (5, 4, 16), (4, 7, 17), (33, 16, 64), (2, 3, 0)]


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(("n_i", "n_j", "n"), SIZES)
def test_parts_are_numpys(n_i: int, n_j: int, n: int, swap: bool) -> None:
    x = np.random.default_rng(1).standard_normal((n_i, n_j, n + 9)).astype(np.float32)
    shape = (n_j, n_i, n + 5) if swap else (n_i, n_j, n + 5)
    out = np.full(shape, 7, np.float32)
    expected = out.copy()
    part = x[:, :, 4 : 4 + n]
    expected[:, :, 3 : 3 + n] = part.swapaxes(0, 1) if swap else part
    copy_part(x, 4, out, 3, n, swap=swap)
    np.testing.assert_array_equal(out, expected)


def test_what_does_not_fit_is_refused() -> None:
    x, out = (np.zeros(shape, np.float32) for shape in ((2, 3, 8), (3, 2, 8)))
    for message, arguments in {
        r"out is \(3, 2, 8\), expected \(2, 3\) rows": (x, 0, out, 0, 8),
        "9 numbers from 0": (x, 0, x.copy(), 0, 9),
        "4 numbers from 5": (x, 5, x.copy(), 0, 4),
        "4 numbers from 0 of rows of 8 to 5": (x, 0, x.copy(), 5, 4),
        "x is float64": (x.astype(np.float64), 0, out, 0, 8),
        "contiguous float32 of 3 axes": (x[:, :, ::2], 0, out, 0, 1),
    }.items():
        with pytest.raises(OpsError, match=message):
            copy_part(*arguments)
