"""Gated norms against float64 NumPy."""

import numpy as np
import pytest

from kvarn.ops.errors import OpsError
from kvarn.ops.recurrent.api import gated_rms_norm
from kvarn.ops.reference.recurrent import gated_rms_norm_reference

from .cuts import random


@pytest.mark.parametrize("shape", [(1, 1), (3, 16), (6, 80), (5, 17), (300, 128)])
def test_gated_norm(shape: tuple[int, int]) -> None:
    x, gate, weight = random(*shape), random(*shape, seed=1, size=3.0), random(shape[1], seed=2)
    out = np.empty_like(x)
    want = gated_rms_norm_reference(x, weight, gate, 1e-6)
    gated_rms_norm(x, weight, gate, 1e-6, out)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    for same in (x, gate):
        inputs = [x.copy(), weight, gate.copy()]
        target = inputs[0] if same is x else inputs[2]
        gated_rms_norm(*inputs, 1e-6, target)
        np.testing.assert_array_equal(target, out)


def test_refuses_in_words() -> None:
    x = random(2, 16)
    for words, call in {
        "rows, columns": lambda: gated_rms_norm(x[0], x[0], x[0], 1e-6, x[0]),
        "gate is": lambda: gated_rms_norm(x, x[0], x[:1], 1e-6, x),
        "weight is": lambda: gated_rms_norm(x, x[0, :3], x, 1e-6, x),
    }.items():
        with pytest.raises(OpsError, match=words):
            call()
