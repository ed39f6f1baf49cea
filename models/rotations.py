"""The rope tables of a model's layers, and the device's memory for their rows."""

from __future__ import annotations

import numpy as np

from ..ops.device import Array, Device
from .config import ModelConfig, RopeConfig
from .rope import RopeTable
from .weights import Weights


class Rotations:
    """One table for each rotation that layers have; those of long contexts are others."""

    def __init__(
        self, config: ModelConfig, weights: Weights, max_chunk: int, device: Device
    ) -> None:
        ropes = [layer.rope for layer in config.layers]
        self._config, self._weights = config, weights
        self._max_chunk, self._device = max_chunk, device
        self._ropes: list[RopeConfig] = list(dict.fromkeys(r for r in ropes if r is not None))
        self.of_layer = [None if r is None else self._ropes.index(r) for r in ropes]
        """The number of each layer's rotation, or None."""
        self._tables: dict[bool, tuple[tuple[RopeTable, Array], ...]] = {}

    def angles(self, start: int, n: int, long: bool) -> list[Array]:
        """For each rotation the rows (n, n_rot) of positions start … start + n - 1, always in the
        same memory. long: for contexts beyond the original length."""
        put = self._device.put
        return [put(table.rows(start, n), rows[:n]) for table, rows in self._tables_for(long)]

    def _tables_for(self, long: bool) -> tuple[tuple[RopeTable, Array], ...]:
        if long not in self._tables:
            weights = self._weights
            factors = weights.rope_long if long else weights.rope_short
            if self._config.rope_tensors == "freqs":
                factors = weights.rope_freqs
            self._tables[long] = tuple(
                (
                    RopeTable(rope, self._max_chunk, factors),
                    self._device.memory((self._max_chunk, rope.n_rot), np.float32),
                )
                for rope in self._ropes
            )
        return self._tables[long]
