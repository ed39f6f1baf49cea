"""Products, rows and pointwise kernels."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..device import CudaDevice
from ..linear.formats import FORMATS
from ..linear.linear import MAX_TOKENS, shape_of, tokens_at_once
from ..warm import look_up, multiply, pointwise_operations, small_weight
from .case import Case, cases_of

ROWS = 64
TILES = ("Q4_0", "Q6_K", "F16")
"""Types of which rows are compiled."""


def linear_cases() -> Iterator[Case]:
    """All of them."""
    device = CudaDevice(torch.device("cpu"))
    for name, f in FORMATS.items():
        weight = small_weight(device, name, ROWS)
        for tokens, matrices in ((1, 1), (2, 1), (tokens_at_once(f, MAX_TOKENS), 1), (1, 3)):
            label = f"{name}, {tokens} token{'s' * (tokens > 1)}"
            label += f", {matrices} matrices" * (matrices > 1)
            rows, steps = shape_of(f, tokens)
            yield from cases_of(
                label,
                lambda old: multiply(device, weight, tokens, matrices),  # noqa: B023
                per_step={"product": rows * steps * f.step},
            )
        if name in TILES:
            yield from cases_of(name, lambda old: look_up(device, weight))  # noqa: B023
            yield from cases_of(
                f"{name}, as f16",
                lambda old: multiply(device, weight, MAX_TOKENS + 1, 1),  # noqa: B023
            )
    for name, call in pointwise_operations(device):
        yield from cases_of(name, lambda old: call())  # noqa: B023
