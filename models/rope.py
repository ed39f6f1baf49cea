"""Rotary position tables: cosines and sines of a rotation's angles, for successive positions.

angle(p, i) = p * frequency[i], i < n_rot / 2, with frequency[i] from base^(-2i / n_rot):

- linear: scale * base^(-2i / n_rot) (scale is 1 / factor; 1 when a file does not scale)
- factors (`rope_freqs`, `rope_factors_long/short`): the frequency divided by factor[i]
- yarn: blend of scaled and unscaled frequency, unscaled for dimensions of high frequency

Sources: RoPE (arXiv 2104.09864), YaRN (arXiv 2309.00071), ggml's `rope_yarn`. Angles are float64:
in float32 those of the highest frequency would be off by up to 0.01 at some 10^5 positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..ops.arrays import F32, F64
from ..ops.device import Array, Device
from .config import ModelConfig
from .config.layers import RopeConfig
from .weights import Stack


def frequencies(config: RopeConfig, factors: F32 | None = None) -> F64:
    """Radians per position, float64 (n_rot / 2,); `factors` are the file's divisors."""
    exponents = np.arange(0, config.n_rot, 2, dtype=np.float64) / config.n_rot
    unscaled = config.base**-exponents
    if factors is not None:
        unscaled = unscaled / factors.astype(np.float64)
    scaled = unscaled * config.scale
    if config.scaling != "yarn":
        return scaled
    keep = _unscaled_share(config)
    return scaled * (1.0 - keep) + unscaled * keep


def _unscaled_share(config: RopeConfig) -> F64:
    """YaRN's ramp: 1 for dimensions of beta_fast rotations in training, 0 below beta_slow."""

    def dimension(rotations: float) -> float:
        ratio = config.n_ctx_orig / (rotations * 2.0 * math.pi)
        return config.n_rot * math.log(ratio) / (2.0 * math.log(config.base))

    low = max(0.0, math.floor(dimension(config.beta_fast)))
    high = min(config.n_rot - 1.0, math.ceil(dimension(config.beta_slow)))
    index = np.arange(config.n_rot // 2, dtype=np.float64)
    # 0.001 as in ggml: both ends may fall on one dimension.
    return 1.0 - np.clip((index - low) / max(0.001, high - low), 0.0, 1.0)


class RopeTable:
    """Table rows of one rotation, computed on demand into preallocated memory.

    A table of all positions would take 512 MB for a million tokens; a row costs microseconds.
    """

    def __init__(self, config: RopeConfig, max_rows: int, factors: F32 | None = None) -> None:
        self._frequencies = frequencies(config, factors)
        self._amplitude = config.amplitude
        half = config.n_rot // 2
        self._offsets = np.arange(max_rows, dtype=np.float64)[:, None]
        self._positions = np.empty((max_rows, 1), np.float64)
        self._angles = np.empty((max_rows, half), np.float64)
        self._values = np.empty((max_rows, half), np.float64)
        self._rows = np.empty((max_rows, config.n_rot), np.float32)

    def rows(self, start: int, n: int) -> F32:
        """Rows of positions start .. start + n - 1, float32 (n, n_rot): cosines, then sines.

        The next call overwrites them.
        """
        positions, angles, values = self._positions[:n], self._angles[:n], self._values[:n]
        np.add(self._offsets[:n], start, out=positions)
        np.multiply(positions, self._frequencies, out=angles)
        rows = self._rows[:n]
        half = angles.shape[1]
        for part, function in ((rows[:, :half], np.cos), (rows[:, half:], np.sin)):
            function(angles, out=values)
            np.multiply(values, self._amplitude, out=part, casting="same_kind")
        return rows


class Rotations:
    """The tables of a model's layers, one for each rotation, in the memory of a device.

    Long contexts have tables of their own.
    """

    def __init__(self, config: ModelConfig, weights: Stack, max_chunk: int, device: Device) -> None:
        mixers = [layer.attention for layer in config.layers]
        ropes = [None if mixer is None else mixer.rope for mixer in mixers]
        self._config, self._weights = config, weights
        self._max_chunk, self._device = max_chunk, device
        self._ropes: list[RopeConfig] = list(dict.fromkeys(r for r in ropes if r is not None))
        self.of_layer = [None if r is None else self._ropes.index(r) for r in ropes]
        """The number of each layer's rotation, or None."""
        self._tables: dict[bool, tuple[tuple[RopeTable, Array], ...]] = {}

    def angles(self, start: int, n: int, long: bool) -> list[Array]:
        """For each rotation the rows (n, n_rot) of positions start … start + n - 1.

        Calls use the same memory. long: for contexts beyond the original length.
        """
        put = self._device.put
        return [put(table.rows(start, n), rows[:n]) for table, rows in self._tables_for(long)]

    def angles_of(self, positions: Sequence[int], long: Sequence[bool]) -> list[Array]:
        """For each rotation the rows (B, n_rot) of B positions of contexts, each `long` or not.

        They are in the memory of `angles` of short contexts.
        """
        put, memory = self._device.put, [rows for _, rows in self._tables_for(False)]
        for row, (position, is_long) in enumerate(zip(positions, long, strict=True)):
            for (table, _), rows in zip(self._tables_for(is_long), memory, strict=True):
                put(table.rows(position, 1), rows[row : row + 1])
        return [rows[: len(positions)] for rows in memory]

    def _tables_for(self, long: bool) -> tuple[tuple[RopeTable, Array], ...]:
        if long not in self._tables:
            weights = self._weights
            factors = weights.rope_long if long else weights.rope_short
            if self._config.rope_tensors == "freqs":
                factors = weights.rope_freqs
            self._tables[long] = tuple(
                (
                    RopeTable(rope, self._max_chunk, factors if rope.factors else None),
                    self._device.memory((self._max_chunk, rope.n_rot), np.float32),
                )
                for rope in self._ropes
            )
        return self._tables[long]
