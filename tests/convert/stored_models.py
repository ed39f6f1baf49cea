"""Tiny models as transformers stores them, made of their shapes alone, and their golden results.

Weights follow from the names of their tensors, so that a golden file has shapes and no weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from .hf_folders import write_safetensors

FOLDER = Path(__file__).parent / "golden" / "models"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
IDS = [1, *np.random.default_rng(5).integers(3, 300, 39).tolist()]
KEPT = slice(3, None, 4), slice(None, None, 7)
"""Positions and tokens whose logits a golden file has."""


@dataclass(frozen=True)
class Stored:
    """One golden file."""

    config: dict[str, Any]
    """config.json, as transformers writes it."""
    shapes: dict[str, list[int]]
    """Of the tensors of model.safetensors."""
    keys: dict[str, Any]
    """Metadata that llama.cpp's converter writes, but for general.* and the vocabulary."""
    tensors: dict[str, str]
    """Type, shape and CRC-32 of the bytes of each tensor that it writes at f32."""
    logits: list[list[float]]
    """Some of transformers' logits, see `KEPT`."""

    @staticmethod
    def read(name: str) -> Stored:
        """The file of a name in `NAMES`."""
        return Stored(**json.loads((FOLDER / f"{name}.json").read_text()))

    def write(self, folder: Path) -> None:
        """config.json and model.safetensors."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        write_safetensors(folder / "model.safetensors", weights(self.shapes))


def weights(shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Random weights that make peaked attention; blocks and scales of MXFP4 are bytes."""
    return {name: _weight(name, shape) for name, shape in shapes.items()}


def _weight(name: str, shape: list[int]) -> np.ndarray:
    rng = np.random.default_rng(crc32(name.encode()))
    if name.endswith("_blocks"):
        return rng.integers(0, 256, shape, np.uint8)
    if name.endswith("_scales"):
        return rng.integers(121, 125, shape, np.uint8)
    values = rng.standard_normal(prod(shape), np.float32).reshape(shape)
    if len(shape) > 1:
        return values * np.float32(1.5 / shape[-1] ** 0.5)
    near_one = "norm" in name or "scal" in name
    return values * np.float32(0.1) + np.float32(1) if near_one else values * np.float32(0.5)


def described(name: str, type_name: str, data: np.ndarray, shape: list[int]) -> str:
    """A tensor of a file, as `Stored.tensors` has it; rates, whose last bits differ by library, by
    their values."""
    rates = " ".join(f"{rate:.5g}" for rate in data.ravel()) if name.endswith("ssm_a") else ""
    return f"{type_name} {'x'.join(map(str, shape))} {rates or f'{crc32(data.tobytes()):08x}'}"
