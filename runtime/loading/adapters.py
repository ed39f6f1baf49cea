"""Reads low-rank adapters from GGUF files, for a model whose file is open.

    general.type = "adapter", adapter.type = "lora", general.architecture: that of the model
    adapter.lora.alpha     A's products are scaled by alpha / R; 0: by 1
    NAME.lora_a            (R, K), for the tensor NAME (N, K) of the model
    NAME.lora_b            (N, R)

Source: llama.cpp, `src/llama-adapter.cpp`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from ...models.low_rank import Adapters, Factors, joined
from ...ops.arrays import F32
from ...ops.low_rank import thin_bytes
from ...ops.reference.quants import dequantise
from ...system.errors import KvarnError
from ...system.text import one_line
from ..gguf import GGUFFile, Tensor, open_gguf
from .adapter_files import AdapterFacts, AdapterFile

_ENDS = (".lora_a", ".lora_b")


class AdapterError(KvarnError):
    """An adapter cannot be used with the model; the message begins with its file's name."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"adapter {one_line(path.name, 300)}: {reason}")


@dataclass(frozen=True)
class LoadedAdapters:
    """What adapters add to a model's matrices, and a description of them."""

    factors: Adapters = field(default_factory=dict)
    facts: tuple[AdapterFacts, ...] = ()

    @property
    def n_bytes(self) -> int:
        """Bytes of the matrices in memory."""
        return sum(thin_bytes(*y.shape) for x in self.factors.values() for y in x)


def load_adapters(model: GGUFFile, files: Sequence[AdapterFile]) -> LoadedAdapters:
    """The adapters of the model, together. Reads no weights of the model.

    Raises `AdapterError`: no adapter, one of another architecture, tensors that the model lacks or
    whose shapes do not fit it, numbers that are not finite; `GGUFError` for a damaged file.
    """
    parts: dict[str, list[Factors]] = {}
    facts = []
    for adapter in files:
        with open_gguf(adapter.path) as file:
            alpha = _alpha(file, model)
            state = xxhash.xxh3_64(repr(alpha).encode())
            for name, (a, b) in _pairs(file, model).items():
                for tensor in (a, b):
                    state.update(f"{tensor.name} {tensor.type.name} {tensor.shape}\n".encode())
                    state.update(tensor.data.data)
                factors = _scaled(adapter, _values(file, a), _values(file, b), alpha)
                parts.setdefault(name, []).append(factors)
            path = str(adapter.path.resolve())
            facts.append(AdapterFacts(state.hexdigest(), adapter.scale, path))
    return LoadedAdapters({name: joined(factors) for name, factors in parts.items()}, tuple(facts))


def check_adapters(model: GGUFFile, files: Sequence[AdapterFile]) -> None:
    """Raises what `load_adapters` raises, but for numbers, of which none are read."""
    for adapter in files:
        with open_gguf(adapter.path) as file:
            _alpha(file, model)
            _pairs(file, model)


def _alpha(file: GGUFFile, model: GGUFFile) -> float:
    """The adapter's alpha; `AdapterError` unless the file is an adapter for the architecture."""
    for key, expected in (("general.type", "adapter"), ("adapter.type", "lora")):
        if (value := file.get(key, str, "")) != expected:
            raise AdapterError(
                file.path,
                f"it is no low-rank adapter: found {key} {one_line(value) or 'missing'}, expected "
                f"{expected}",
            )
    if file.architecture != model.architecture:
        raise AdapterError(
            file.path,
            f"it is for architecture {one_line(file.architecture)}, and "
            f"{one_line(model.path.name, 300)} has {one_line(model.architecture)}",
        )
    if "adapter.alora.invocation_tokens" in file.metadata:
        raise AdapterError(
            file.path, "it begins at a token of its own (activated LoRA), which kvarn does not do"
        )
    alpha = file.get("adapter.lora.alpha", float, 0.0)
    if not math.isfinite(alpha):
        raise AdapterError(file.path, f"found adapter.lora.alpha {alpha}, expected a finite number")
    return alpha


def _pairs(file: GGUFFile, model: GGUFFile) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B by the names of the model's tensors, with shapes that fit."""
    pairs: dict[str, list[Tensor | None]] = {}
    for name, tensor in file.tensors.items():
        stem, end = name[:-7], name[-7:]
        if end not in _ENDS:
            raise AdapterError(
                file.path, f"found tensor {one_line(name)}, expected NAME.lora_a and NAME.lora_b"
            )
        pairs.setdefault(stem, [None, None])[_ENDS.index(end)] = tensor
    if not pairs:
        raise AdapterError(file.path, "it has no tensors, expected NAME.lora_a and NAME.lora_b")
    return {name: _checked(file, model.tensors, name, *pair) for name, pair in pairs.items()}


def _checked(
    file: GGUFFile, of_model: Mapping[str, Tensor], name: str, a: Tensor | None, b: Tensor | None
) -> tuple[Tensor, Tensor]:
    if a is None or b is None:
        missing = f"{name}{_ENDS[0 if a is None else 1]}"
        raise AdapterError(file.path, f"tensor {one_line(missing)} is missing")
    if name not in of_model:
        raise AdapterError(
            file.path, f"it changes tensor {one_line(name)}, which the model does not have"
        )
    shape = of_model[name].shape
    fits = len(shape) == len(a.shape) == len(b.shape) == 2
    if not fits or (b.shape[0], a.shape[1]) != shape or a.shape[0] != b.shape[1]:
        raise AdapterError(
            file.path,
            f"tensor {one_line(name)} has shape {shape} in the model, found lora_a {a.shape} and "
            f"lora_b {b.shape}, expected (R, columns) and (rows, R)",
        )
    return a, b


def _scaled(adapter: AdapterFile, a: F32, b: F32, alpha: float) -> Factors:
    """The factors of scale · alpha / R · b a; `AdapterError` where numbers may exceed float32."""
    scale = adapter.scale * (alpha / len(a) if alpha else 1.0)
    most_a, most_b = (float(np.abs(x).max(initial=0.0)) for x in (a, b))
    most = abs(scale) * max(1.0, most_b * max(1.0, len(a) * most_a))
    if not most <= float(np.finfo(np.float32).max):
        raise AdapterError(
            adapter.path,
            f"its numbers times the scale {adapter.scale:g} exceed float32: expected one nearer to "
            "0",
        )
    return Factors(a, b * np.float32(scale))


def _values(file: GGUFFile, tensor: Tensor) -> F32:
    values = dequantise(tensor.type, tensor.data)
    if not np.isfinite(values).all():
        raise AdapterError(
            file.path,
            f"tensor {one_line(tensor.name)} holds values that are not finite, expected numbers",
        )
    return np.array(values, np.float32)  # outlasts the file
