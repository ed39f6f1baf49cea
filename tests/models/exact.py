"""A forward pass in float64 throughout: what kvarn and llama.cpp are both measured by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from kvarn.jit.arena import Arena
from kvarn.models import ModelConfig, rope
from kvarn.models.config.layers import RopeConfig
from kvarn.models.low_rank import Adapters
from kvarn.models.mixers import latent
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights
from kvarn.ops.types import QuantType

from . import plain


def _wide(dtype: Any) -> Any:
    return np.float64 if np.dtype(dtype) == np.float32 else dtype


class _Weight(plain.PlainWeight):
    @staticmethod
    def prepare(
        kind: QuantType, data: np.ndarray, n_cols: int, name: str = "", arena: Arena | None = None
    ) -> plain.PlainWeight:
        weight = plain.PlainWeight.prepare(kind, data, n_cols, name)
        weight.matrix = weight.matrix.astype(np.float64)
        return weight


class _Activations(plain.PlainActivations):
    def __init__(self, max_rows: int, n_cols: int, *, alone: bool = False) -> None:
        super().__init__(max_rows, n_cols)
        self.x = np.empty((max_rows, n_cols))


class _Device(plain.Plain):
    """Plain operations on memory of float64."""

    weight = staticmethod(_Weight.prepare)
    activations = _Activations

    def memory(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.zeros(shape, _wide(dtype))

    def put(self, values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        if out is None:
            return np.array(values, _wide(values.dtype))
        out[...] = values
        return out


class _Table(rope.RopeTable):
    def __init__(self, config: RopeConfig, max_rows: int, factors: Any = None) -> None:
        super().__init__(config, max_rows, factors)
        self._rows = np.empty(self._rows.shape)


def exact_logits(
    metadata: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    ids: list[int],
    n_ctx: int,
    adapters: Adapters | None = None,
) -> np.ndarray:
    """Logits float64 (T, V) of float32 weights."""
    config = ModelConfig.from_metadata(metadata)
    weights = Weights.load(plain.as_tensors(arrays), config, device=_Device(), adapters=adapters)
    attention = plain.PlainAttention(config)
    attention.sinks = weights.sink_logits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rope, "RopeTable", _Table)
        patch.setattr(latent, "copy_part", plain.plain_copy_part)
        model = Transformer(config, weights, len(ids))
        hidden = model.forward(np.array(ids, np.int32), 0, attention, n_ctx)
        model.logits(hidden, out := np.zeros((len(ids), config.n_vocab)))
    return out
