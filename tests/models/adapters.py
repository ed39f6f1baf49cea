"""Adapters of random numbers, and models into which they are merged in float64."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import gguf
import numpy as np

from . import tiny_cases, tiny_models
from .tiny.case import Tiny

F32 = np.float32
Pairs = dict[str, tuple[np.ndarray, np.ndarray]]
"""A (R, K) and B (N, R) by the name of the tensor."""

CASES = {case.name: case for case in tiny_cases.CASES}
SEED = 1
_NO_PROJECTIONS = ("token_embd", "norm", "conv", "inp_shexp", "sinks", "attn_kv_b")


def projections(case: Tiny) -> dict[str, tuple[int, int]]:
    """The shapes of the tensors that adapters can change."""
    unread = [f"blk.{case.n_layers - 1}."] if case.keys.get("nextn_predict_layers") else []
    return {
        name: values.shape
        for name, values in tiny_models.tensors(case, SEED).items()
        if values.ndim == 2
        and name.endswith(".weight")
        and not any(word in name for word in (*_NO_PROJECTIONS, *unread))
    }


def random_pairs(
    shapes: dict[str, tuple[int, int]], rank: int, seed: int = 0, size: float = 0.5
) -> Pairs:
    """B A has `size` times the spread of a matrix that keeps the size of its input."""
    rng = np.random.default_rng(seed)
    spread = (size / rank**0.5) ** 0.5
    return {
        name: (
            (rng.normal(size=(rank, columns)) * spread / columns**0.25).astype(F32),
            (rng.normal(size=(rows, rank)) * spread / columns**0.25).astype(F32),
        )
        for name, (rows, columns) in shapes.items()
    }


def write_adapter(
    path: Path,
    architecture: str,
    pairs: Pairs,
    alpha: float | None = None,
    **changes: str,
) -> Path:
    """Write a GGUF adapter. changes: other values of `general_type` and `adapter_type`."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("general.type", changes.get("general_type", "adapter"))
    writer.add_string("adapter.type", changes.get("adapter_type", "lora"))
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    for name, (a, b) in pairs.items():
        writer.add_tensor(f"{name}.lora_a", a)
        writer.add_tensor(f"{name}.lora_b", b)
    tiny_models.finish(writer)
    return path


def merged(case: Tiny, added: Iterable[tuple[Pairs, float]]) -> dict[str, np.ndarray]:
    """The model's tensors with W + scale B A, summed in float64, in place of each W; float32."""
    tensors = tiny_models.tensors(case, SEED)
    wide = {name: values.astype(np.float64) for name, values in tensors.items()}
    for pairs, scale in added:
        for name, (a, b) in pairs.items():
            wide[name] += scale * (b.astype(np.float64) @ a.astype(np.float64))
    return {name: values.astype(F32) for name, values in wide.items()}


def write_merged(path: Path, case: Tiny, added: Iterable[tuple[Pairs, float]]) -> Path:
    """Write the merged model as a GGUF file."""
    writer = gguf.GGUFWriter(path, case.architecture)
    tiny_models.add_metadata(writer, tiny_models.metadata(case))
    for name, values in merged(case, added).items():
        writer.add_tensor(name, values)
    tiny_models.finish(writer)
    return path
