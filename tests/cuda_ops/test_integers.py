"""Products by integers, the trial of `lab.gpu.integers`, against float64."""

import numpy as np
import pytest
import torch

from kvarn.cuda_ops.linear import Weight
from kvarn.ops.reference.quants import dequantise
from kvarn.ops.types import QUANT_TYPES
from lab.gpu.integers import TYPES, Integers, in_order, multiply, round_to_integers
from lab.gpu.products import random_rows


def _products(device, name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of five rows by tiles of four, and the rows in float64."""
    (n_tokens, n_cols), quant = x.shape, QUANT_TYPES[name]
    rows = random_rows(name, 5, n_cols)
    weight = Weight.prepare(quant, torch.tensor(rows), n_cols, device)
    integers = Integers.allocate(n_tokens, n_cols, device)
    round_to_integers(torch.tensor(x, device=device), integers)
    out = torch.full((n_tokens + 1, 5), 7.0, device=device)
    multiply(in_order(weight), integers, out[:-1], (4, 1))
    assert (out[-1] == 7).all()
    return out[:-1].cpu().numpy(), dequantise(quant, rows).astype(np.float64)


@pytest.mark.parametrize("n_tokens", [1, 5])
@pytest.mark.parametrize("name", TYPES)
def test_what_is_lost_is_half_a_step_of_each_number(device, name: str, n_tokens: int) -> None:
    """The sum of |w| times half of the largest |x| of 32 / 32767, and float32's own error."""
    n_cols = 1280 if QUANT_TYPES[name].block == 256 else 1120  # more than a tile's 1024
    x = np.random.default_rng(1).standard_normal((n_tokens, n_cols)).astype(np.float32)
    x[0, 64:96] *= 1e4
    x[0, 96:128] = 0.0
    got, w = _products(device, name, x)
    wide = x.astype(np.float64)
    largest = np.abs(wide).reshape(n_tokens, -1, 32).max(2).repeat(32, 1)
    bound = largest @ np.abs(w.T) / 64_000 + 1e-6 * (np.abs(wide) @ np.abs(w.T))
    assert (np.abs(got - wide @ w.T) <= bound).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_shows(device, wrong: float) -> None:
    x = np.ones((2, 64), np.float32)
    x[1, 40] = wrong
    got, _ = _products(device, "Q4_0", x)
    assert np.isfinite(got[0]).all() and np.isnan(got[1]).all()
