"""Rotary position tables: cosines and sines of all angles of a rotation, for successive positions.

angle(p, i) = p * frequency[i], i < n_rot / 2, with frequency[i] from base^(-2i / n_rot):

- linear: scale * base^(-2i / n_rot) (scale is 1 / factor; 1 when a file does not scale)
- factors (`rope_freqs`, `rope_factors_long/short`): the frequency divided by factor[i]
- yarn: blend of scaled and unscaled frequency, unscaled for dimensions of high frequency

Sources: RoPE (arXiv 2104.09864), YaRN (arXiv 2309.00071), ggml's `rope_yarn`. Angles are float64:
in float32 those of the highest frequency would be off by up to 0.01 at some 10^5 positions.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from .config import RopeConfig

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


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
    """Table rows of one rotation, computed when needed, into preallocated memory.

    A table of all positions would be 512 MB for a million tokens; a row costs microseconds.
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
