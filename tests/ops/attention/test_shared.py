"""Attention to rows that are keys and values at once, against float64 NumPy over the rows as
stored; what was never written is NaN."""

from __future__ import annotations

import numpy as np
import pytest

from kvarn.ops.attention import TileLayout, n_segments
from kvarn.ops.attention.api import append_kv, attention
from kvarn.ops.attention.layout import SharedLayout, layout_of
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.cpu import CPU
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.attention import attention_reference, read_kv
from kvarn.ops.select import ExactScratch, products

ROWS = [(576, "f16", 128), (576, "q8_0", 5), (1000, "q4_0", 1)]
N = 1100
TOLERANCE = 5e-6  # as for keys and values that stand apart


class Cache:
    """N rows of one KV head, appended at once."""

    def __init__(self, row: int, kind: str) -> None:
        self.layout = layout_of(row, kind, kind)
        size = self.layout.segment_bytes(1)
        raw = np.full(n_segments(N) * size + 64, 255, np.uint8)
        self.memory = raw[-raw.ctypes.data % 64 :][: n_segments(N) * size].reshape(-1, size)
        self.segments = self.memory.ctypes.data + size * np.arange(len(self.memory))
        self.x = np.random.default_rng(row).standard_normal((N, 1, row)).astype(np.float32)
        append_kv(self.x, self.x, self.segments, self.layout, 0)


@pytest.mark.parametrize(("row", "kind", "n_heads"), ROWS)
def test_attention_is_numpys(row: int, kind: str, n_heads: int) -> None:
    cache = Cache(row, kind)
    keys, values = read_kv(cache.segments, cache.layout, 1, 0, N)
    scratch = CPU.attention_scratch(n_heads, 1, cache.layout, 64, N)
    softmax = Softmax(row**-0.5)
    for start, n in ((0, 1), (16, 1), (1024, 1), (N - 1, 1), (0, 2), (1000, 37), (1021, 5)):
        q = np.random.default_rng(n).standard_normal((n, n_heads, row)).astype(np.float32)
        attention(
            q, cache.segments, start, out := np.empty_like(q), softmax=softmax, scratch=scratch
        )
        k, v = keys[: start + n], values[: start + n]
        expected = attention_reference(q, k, v, start, softmax=softmax, window=None)
        assert np.abs(out - expected).max() < TOLERANCE


@pytest.mark.parametrize(("row", "kind", "n_heads"), ROWS[:2])
def test_products_are_numpys(row: int, kind: str, n_heads: int) -> None:
    cache = Cache(row, kind)
    keys, _ = read_kv(cache.segments, cache.layout, 1, 0, N)
    scratch = ExactScratch(n_heads, 1, N, 1, cache.layout)
    for stop in (1, 17, 1024, 1025, N):
        q = np.random.default_rng(stop).standard_normal((1, n_heads, row)).astype(np.float32)
        out = np.full((n_heads, stop), np.nan, np.float32)
        products(q, cache.segments, stop, out, scratch=scratch)
        expected = q[0].astype(np.float64) @ keys[:stop, 0].T.astype(np.float64)
        assert np.abs(out - expected).max() < 2e-6 * row


@pytest.mark.parametrize(("row", "kind", "n_heads"), ROWS)
def test_a_row_is_stored_once(row: int, kind: str, n_heads: int) -> None:
    cache = Cache(row, kind)
    keys, values = read_kv(cache.segments, cache.layout, 1, 0, N)
    np.testing.assert_array_equal(keys, values)
    apart = TileLayout(512, kind, kind)
    assert cache.layout.tile_bytes / cache.layout.padded < 0.6 * apart.tile_bytes / apart.padded


def test_only_long_rows_of_one_type_are_shared() -> None:
    assert layout_of(512, "f16", "q8_0") == TileLayout(512, "f16", "q8_0")
    with pytest.raises(OpsError, match="found types q8_0/q4_0, expected one type"):
        layout_of(576, "q8_0", "q4_0")
    with pytest.raises(OpsError, match="rows of 1025; 513 to 1024 is supported"):
        layout_of(1025, "f16", "f16")
    with pytest.raises(OpsError, match="rows of 512; 513"):
        SharedLayout(512, "f16", "f16")
    with pytest.raises(OpsError, match="unknown type 'q3'"):
        layout_of(576, "q3", "q3")
