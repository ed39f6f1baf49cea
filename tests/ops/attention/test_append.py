"""What append_kv writes: NumPy's f16 and gguf-py's quantised blocks are the oracles."""

import gguf
import numpy as np
import pytest
from gguf.quants import quantize
from numba import njit

from kvarn.ops.attention import TileLayout
from kvarn.ops.attention.api import append_kv
from kvarn.ops.attention.append import encode_block
from kvarn.ops.attention.layout import Q4_0, Q8_0
from kvarn.ops.attention.rotation import rotate_row
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.attention import hadamard, read_kv, rotate


@njit
def _encode_all(x, rows, row_bytes, scales):
    for i in range(len(x)):
        if row_bytes == 32:
            encode_block(Q8_0, i, x.ctypes.data, rows.ctypes.data, scales.ctypes.data)
        else:
            encode_block(Q4_0, i, x.ctypes.data, rows.ctypes.data, scales.ctypes.data)


def _blocks() -> np.ndarray:
    """Random blocks of many sizes, and the awkward ones: zeros, ties of sign, exact halves."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((300, 32)) * 10.0 ** rng.uniform(-6, 4, (300, 1))
    x[0] = 0
    x[1] = np.where(np.arange(32) % 2, 3.0, -3.0)
    x[2] = np.where(np.arange(32) % 2, -3.0, 3.0)
    x[3] = np.arange(32) - 16
    x[4] = np.r_[127.0, np.arange(31) - 15.5]
    x[5] = np.r_[-8.0, np.arange(31) / 2 - 7.5]
    x[6, 1:] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "row_bytes"),
    [(gguf.GGMLQuantizationType.Q8_0, 32), (gguf.GGMLQuantizationType.Q4_0, 16)],
)
def test_blocks_equal_gguf(kind: gguf.GGMLQuantizationType, row_bytes: int) -> None:
    x = _blocks()
    rows, scales = np.zeros((len(x), row_bytes), np.uint8), np.zeros(len(x), np.uint16)
    _encode_all(x, rows, row_bytes, scales)
    want = quantize(x, kind)
    np.testing.assert_array_equal(scales, want[:, :2].copy().view(np.uint16)[:, 0])
    np.testing.assert_array_equal(rows, want[:, 2:])


def test_f16_is_rounded_to_nearest_even(make_cache) -> None:
    cache = make_cache(80, "f16", "f16", 2, 100)
    k, v = cache.stored()
    np.testing.assert_array_equal(k, cache.k.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(v, cache.v.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(("k_type", "v_type"), [("q8_0", "q4_0"), ("q4_0", "q8_0")])
@pytest.mark.parametrize("head_dim", [8, 96, 128])
def test_quantised_rows_are_near(make_cache, k_type: str, v_type: str, head_dim: int) -> None:
    """Half a step of the f16 scale (q8_0), one step in the rotated row (q4_0)."""
    cache = make_cache(head_dim, k_type, v_type, 3, 40)
    steps = {"q8_0": 0.57 / 127, "q4_0": 1.01 / 8}
    for x, y, kind in zip((cache.k, cache.v), cache.stored(), (k_type, v_type)):
        row, got = (np.pad(z, [(0, 0), (0, 0), (0, -head_dim % 32)]) for z in (x, y))
        if kind == "q4_0":
            row = rotate(row, cache.layout.rotation)
            got = rotate(got, cache.layout.rotation) if head_dim % 32 == 0 else row
        row, got = (z.reshape(*z.shape[:2], -1, 32) for z in (row, got))
        assert np.all(np.abs(row - got) <= steps[kind] * np.abs(row).max(-1, keepdims=True) + 1e-6)
        assert np.abs(x - y).max() < 0.6


def test_rotation_is_sylvesters_matrix() -> None:
    x = np.random.default_rng(0).standard_normal((3, 192)).astype(np.float32)
    for block in (32, 64):
        y = x.copy()
        for row in y:
            rotate_row(row.ctypes.data, 192, block)
        np.testing.assert_allclose(y, rotate(x, block), atol=2e-6)
        np.testing.assert_allclose(hadamard(block) @ hadamard(block), np.eye(block), atol=1e-12)


@pytest.mark.parametrize("kinds", [("f16", "f16"), ("q8_0", "q4_0")])
def test_pieces_write_the_same_bytes_and_no_others(make_cache, kinds: tuple[str, str]) -> None:
    whole, pieces = (make_cache(40, *kinds, 2, 1063, step=step) for step in (1063, 17))
    np.testing.assert_array_equal(whole.memory, pieces.memory)
    fresh = whole.memory[1].reshape(2, 64, -1)[:, 1063 % 1024 // 16 + 1 :]
    assert np.all(fresh == 255)


def test_padding_is_zeros(make_cache) -> None:
    cache = make_cache(33, "f16", "f16", 1, 20)
    rows = cache.memory[0, : 2 * 4096].view(np.float16).reshape(2, 2, 16, 64)  # tile, K|V, token
    assert np.all(rows[0, :, :, 33:] == 0)
    assert np.all(rows[1, :, :4, 33:] == 0)


def test_refuses_in_words() -> None:
    layout, segments = TileLayout(64), np.zeros(1, np.int64)
    k = np.zeros((4, 1, 64), np.float32)
    with pytest.raises(OpsError, match="reserve more"):
        append_kv(k, k, segments, layout, 1023)
    with pytest.raises(OpsError, match="expected"):
        append_kv(k, k[:1], segments, layout, 0)
    with pytest.raises(OpsError, match="not contiguous"):
        append_kv(k[::2], k[::2], segments, layout, 0)
    with pytest.raises(OpsError, match="float64"):
        append_kv(k.astype(np.float64), k, segments, layout, 0)
    with pytest.raises(OpsError, match="k is"):
        append_kv(k[..., :32], k, segments, layout, 0)


def test_read_kv_of_nothing(make_cache) -> None:
    cache = make_cache(64, "f16", "f16", 2, 1)
    k, _ = read_kv(cache.segments, cache.layout, 2, 0, 0)
    assert k.shape == (0, 2, 64)
