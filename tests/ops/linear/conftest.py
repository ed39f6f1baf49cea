"""Random rows of any type."""

from collections.abc import Callable

import numpy as np
import pytest

from kvarn.ops.types import QUANT_TYPES

# Where the f16 numbers of a block are; random bytes there could be NaN or enormous.
HALVES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "MXFP4": (),
}


def _rows(type_name: str, n_rows: int, n_cols: int, seed: int = 0) -> np.ndarray:
    """uint8[n_rows, row_bytes]: every pattern of codes and integer scales, sane float scales."""
    rng, quant_type = np.random.default_rng(seed), QUANT_TYPES[type_name]
    if quant_type.block == 1:
        x = rng.normal(size=(n_rows, n_cols)).astype(np.float32)
        if type_name == "F16":
            return x.astype(np.float16).view(np.uint8)
        return x.view(np.uint8) if type_name == "F32" else _bf16(x)
    shape = n_rows, n_cols // quant_type.block, quant_type.n_bytes
    data = rng.integers(0, 256, shape, dtype=np.uint8)
    for at in HALVES.get(type_name, (0,)):
        scale = (0.01 * rng.normal(size=shape[:2])).astype(np.float16)
        data[:, :, at : at + 2] = scale.view(np.uint8).reshape(*shape[:2], 2)
    if type_name == "MXFP4":
        data[:, :, 0] = rng.integers(110, 130, shape[:2])
    return data.reshape(n_rows, -1)


def _bf16(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


@pytest.fixture(scope="session")
def random_rows() -> Callable[..., np.ndarray]:
    return _rows
