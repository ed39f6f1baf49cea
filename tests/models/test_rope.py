"""Rope tables: the properties of each scaling (their use is checked against llama.cpp's logits)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from kvarn.models import RopeConfig
from kvarn.models.rope import RopeTable, frequencies

PLAIN = RopeConfig(
    n_rot=64, base=10_000.0, scale=1.0, scaling="linear", n_ctx_orig=2048, amplitude=1.0
)
YARN = replace(PLAIN, scaling="yarn", scale=0.25)


def test_rows_are_cosines_then_sines_of_position_times_frequency() -> None:
    rows = RopeTable(PLAIN, 8).rows(5, 3)
    assert rows.shape == (3, 64) and rows.dtype == np.float32
    for t in range(3):
        for i in range(32):
            angle = (5 + t) * 10_000.0 ** (-2 * i / 64)
            assert rows[t, i] == pytest.approx(math.cos(angle), abs=1e-7)
            assert rows[t, 32 + i] == pytest.approx(math.sin(angle), abs=1e-7)


def test_distant_positions_keep_their_phase() -> None:
    position = 1_000_003
    rows = RopeTable(PLAIN, 1).rows(position, 1)
    # The exact quotient of the angle by a full turn, in extended precision.
    exact = np.longdouble(position) * np.longdouble(10_000) ** (
        -np.arange(0, 64, 2, dtype=np.longdouble) / 64
    )
    np.testing.assert_allclose(rows[0, :32], np.cos(exact).astype(np.float64), atol=1e-6)


def test_a_run_of_rows_equals_its_rows_one_by_one() -> None:
    run = RopeTable(PLAIN, 16).rows(100, 16).copy()
    single = RopeTable(PLAIN, 1)
    for t in range(16):
        np.testing.assert_array_equal(run[t], single.rows(100 + t, 1)[0])


def test_linear_scaling_is_a_smaller_position() -> None:
    scaled = RopeTable(replace(PLAIN, scale=0.125), 1).rows(80, 1)
    np.testing.assert_allclose(scaled, RopeTable(PLAIN, 1).rows(10, 1), atol=1e-7)


def test_factors_divide_frequencies() -> None:
    factors = np.linspace(1, 8, 32).astype(np.float32)
    np.testing.assert_allclose(frequencies(PLAIN, factors), frequencies(PLAIN) / factors)


def test_amplitude_scales_both_parts() -> None:
    loud = RopeTable(replace(PLAIN, amplitude=1.25), 1).rows(9, 1)
    np.testing.assert_allclose(loud, 1.25 * RopeTable(PLAIN, 1).rows(9, 1).copy(), rtol=1e-6)


def test_yarn_keeps_fast_dimensions_and_scales_slow_ones() -> None:
    plain, yarn = frequencies(PLAIN), frequencies(YARN)
    turns = PLAIN.n_ctx_orig * plain / (2 * math.pi)
    np.testing.assert_allclose(yarn[turns > 40], plain[turns > 40])
    np.testing.assert_allclose(yarn[turns < 0.5], plain[turns < 0.5] / 4)
    assert (np.diff(yarn) < 0).all()


def test_yarn_without_stretching_changes_nothing() -> None:
    np.testing.assert_allclose(frequencies(replace(YARN, scale=1.0)), frequencies(PLAIN))
