"""Activations as planes of int8, which `lab.gpu.products` multiplies by Q4_0 on a GPU."""

import numpy as np
import pytest
import torch

from kvarn.cuda_ops.linear import Weight
from kvarn.ops.reference.quants import dequantise
from kvarn.ops.types import QUANT_TYPES
from lab.gpu.products import quantised, random_rows


@pytest.mark.parametrize(("planes", "error"), [(1, 1e-2), (2, 4e-5), (3, 3e-7)])
def test_bytes_meet_their_codes(planes: int, error: float) -> None:
    """What `dp4a` would sum: four bytes of a word by four of x."""
    quant, rows = QUANT_TYPES["Q4_0"], random_rows("Q4_0", 5, 96)
    weight = Weight.prepare(quant, torch.tensor(rows), 96, torch.device("cpu"))
    x = torch.from_numpy(np.random.default_rng(1).standard_normal(96).astype(np.float32))
    digits, scales, centres = (t.numpy() for t in quantised(x, planes))
    words = weight.planes.codes.numpy().view(np.uint32).reshape(5, 3, 4)
    halves = np.stack([words & 0x0F0F0F0F, words >> 4 & 0x0F0F0F0F])
    codes = halves.copy().view(np.uint8).astype(np.int64)  # (2, rows, steps, 16)
    of_x = digits.copy().view(np.int8).astype(np.int64)  # (planes, 2, steps, 16)
    value = np.einsum("hrsb,phsb->prs", codes, of_x)
    powers = 256.0 ** np.arange(planes)[::-1]
    sums = np.einsum("p,prs->rs", powers, value) * scales - centres
    got = (weight.planes.heads.numpy().astype(np.float64).reshape(5, 3) * sums).sum(1)
    want = dequantise(quant, rows).astype(np.float64) @ x.numpy()
    assert np.linalg.norm(got - want) <= error * np.linalg.norm(want)
