"""A tiny model with matrices of any quantised type, made of random blocks.

gguf-py can decode every type but encode only some, so the blocks themselves are random bits: any
bits are a valid block as long as its float16 factors are sound numbers. Works the same everywhere.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from . import plain, tiny_models
from .tiny import latent
from .tiny.case import Tiny

# Where the blocks of a type hold float16 factors, as (byte offset, sign of its value), and the
# ratio of the offset's factor to the scale's that centres the weights (0: symmetric types).
FACTORS: dict[str, tuple[tuple[int, ...], tuple[int, ...], float]] = {
    "Q8_0": ((0,), (), 0.0),
    "Q4_0": ((0,), (), 0.0),
    "Q4_1": ((0,), (2,), -7.5),
    "Q5_0": ((0,), (), 0.0),
    "Q5_1": ((0,), (2,), -15.5),
    "Q2_K": ((80,), (82,), 1.5),
    "Q3_K": ((108,), (), 0.0),
    "Q4_K": ((0,), (2,), 7.5),
    "Q5_K": ((0,), (2,), 15.5),
    "Q6_K": ((208,), (), 0.0),
    "IQ4_NL": ((0,), (), 0.0),
    "IQ4_XS": ((0,), (), 0.0),
    "MXFP4": ((), (), 0.0),
}
TYPES = (*FACTORS, "F16", "BF16")
WITH_EXPERTS = ("Q8_0", "Q4_K", "MXFP4")
LATENT_TYPES = ("Q8_0", "Q4_0", "Q4_K")
KINDS = (
    *TYPES,
    *(f"{name} experts" for name in WITH_EXPERTS),
    *(f"{name} latent" for name in LATENT_TYPES),
)
"""What models are made of: the type of their matrices, and whether they have experts, or latent
attention."""

# Rows of 256 and 512 weights: whole blocks of every type.
CASE = Tiny(
    "quantised", "llama", n_layers=2, n_embd=256, n_heads=4, head_dim=64, n_ff=512, n_vocab=61
)
EXPERTS = Tiny(
    "quantised-experts",
    "llama",
    n_layers=2,
    n_embd=256,
    n_heads=4,
    head_dim=64,
    n_ff=256,
    n_vocab=61,
    keys={"expert_count": 5, "expert_used_count": 2},
)
LATENT = Tiny(
    "quantised-latent",
    "deepseek2",
    n_layers=2,
    n_embd=256,
    n_heads=4,
    n_kv_heads=1,
    n_ff=512,
    n_vocab=61,
    keys=latent.keys(256, 64, 256, 64, q_rank=256) | {"leading_dense_block_count": 2},
)
CASES = {"experts": EXPERTS, "latent": LATENT}
SEED = 7
N_TOKENS = 48


def _half(value: float) -> np.ndarray:
    return np.array([value], np.float16).view(np.uint8)


def blocks(name: str, kind: str, shape: tuple[int, ...], std: float) -> np.ndarray:
    """Random rows of quantised weights of about this standard deviation, uint8 (rows, bytes)."""
    quant = gguf.GGMLQuantizationType[kind]
    block, n_bytes = gguf.GGML_QUANT_SIZES[quant]
    n = int(np.prod(shape)) // block
    raw = tiny_models._uniform(f"{kind}/{name}", SEED, n * n_bytes)
    data = np.floor(raw * 256).astype(np.uint8).reshape(n, n_bytes)
    if kind == "MXFP4":
        # A power of two, its exponent in the first byte, the weights' spread about 5 of it.
        data[:, 0] = 128 + round(float(np.log2(std / 5.0)))
        return data.reshape(*shape[:-1], -1)
    scales, offsets, ratio = FACTORS[kind]

    def fill(scale: float) -> None:
        for at in scales:
            data[:, at : at + 2] = _half(scale)
        for at in offsets:
            data[:, at : at + 2] = _half(scale * ratio)

    fill(2.0**-8)
    decoded = gguf.quants.dequantize(data[:64].reshape(1, -1), quant)
    fill(2.0**-8 * std / float(decoded.std()))
    return data.reshape(*shape[:-1], -1)


def _gain(name: str) -> float:
    return tiny_models.GAINS.get(name.split(".")[-2], 1.5)


def _case(kind: str) -> Tiny:
    return CASES.get(kind.partition(" ")[2], CASE)


@lru_cache
def _arrays(case_name: str) -> dict[str, np.ndarray]:
    (case,) = (case for case in (CASE, *CASES.values()) if case.name == case_name)
    return tiny_models.tensors(case, SEED)


@lru_cache
def tensors(kind: str) -> dict[str, tuple[np.ndarray, str]]:
    """Every tensor's stored form and type: matrices of `kind`, float32 norms and routers."""
    result: dict[str, tuple[np.ndarray, str]] = {}
    arrays, kind = _arrays(_case(kind).name), kind.partition(" ")[0]
    for name, values in arrays.items():
        if values.ndim == 1 or "gate_inp" in name:
            result[name] = values, "F32"
        elif kind == "F16":
            result[name] = values.astype(np.float16), kind
        elif kind == "BF16":
            result[name] = (values.view(np.uint32) >> 16).astype(np.uint16), kind
        else:
            std = float(values.std())
            result[name] = blocks(name, kind, values.shape, std), kind
    return result


def write(path: Path, kind: str) -> None:
    """Write the model with all matrices of one type."""
    writer = gguf.GGUFWriter(path, _case(kind).architecture)
    tiny_models.add_metadata(writer, metadata(kind))
    for name, (data, stored) in tensors(kind).items():
        quant = gguf.GGMLQuantizationType[stored]
        if stored in ("F32", "F16"):
            writer.add_tensor(name, data)
        else:
            writer.add_tensor(name, data.view(np.uint8), raw_dtype=quant)
    tiny_models.finish(writer)


def metadata(kind: str) -> dict[str, Any]:
    """The model's metadata."""
    return tiny_models.metadata(_case(kind))


def ids() -> list[int]:
    """The tokens that are fed, whatever the model would have said."""
    drawn = tiny_models._uniform("quantised/ids", SEED, N_TOKENS - 1)
    return [1, *(3 + np.floor(drawn * (CASE.n_vocab - 3)).astype(int)).tolist()]


def array_tensors(kind: str) -> dict[str, Any]:
    """The model as tensors of decoded float32 values: exact weights, no quantised arithmetic."""
    result = {}
    for name, (data, stored) in tensors(kind).items():
        quant = gguf.GGMLQuantizationType[stored]
        raw = data.view(np.uint8) if stored not in ("F32", "F16") else data
        decoded = raw if stored in ("F32", "F16") else gguf.quants.dequantize(raw, quant)
        result[name] = np.ascontiguousarray(decoded, np.float32)
    return dict(plain.as_tensors(result))
