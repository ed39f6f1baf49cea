"""Loads and stores reach the bytes they name, at odd offsets, from arrays and from addresses."""

import numpy as np

from kvarn.jit import simd as v
from kvarn.jit.cached import jit


@jit
def _loads(a, at, floats, n):
    v.store(floats, 0, v.load_f16(a, n))
    v.store(floats, 64, v.load_i8_f32(at, n))
    v.store(floats, 128, v.bcast_f32(at, n))
    v.store(floats, 192, v.bcast_i32_i8(a, n))
    v.store(floats, 256, v.load_i8x32(at, n))
    v.store(floats, 288, v.load_i16x16(a, n))
    v.prefetch(a, n)
    v.prefetch_l1(at, n)
    return v.load_half(a, n), v.load_u8(a, n), v.load_u16(at, n), v.load_u32(a, n)


def test_loads_at_odd_offsets_from_array_and_address():
    rng = np.random.default_rng(4)
    raw = rng.integers(0, 256, 103, dtype=np.uint8)
    for n in (0, 1, 3, 39):
        floats = np.empty(80, np.float32)
        values = _loads(raw, raw.ctypes.data, floats, n)
        part = raw[n : n + 64].copy()
        half, small = part.view(np.float16).astype(np.float32), part.view(np.int8)
        word = part[:4].view(np.float32)
        twice = np.r_[part[:32], part[:32]].view(np.float32)
        expected = np.r_[half[:16], small[:16], np.full(32, word), twice].astype(np.float32)
        np.testing.assert_array_equal(floats, expected)
        np.testing.assert_array_equal(values[0], half[0])
        assert values[1:] == (part[0], part.view(np.uint16)[0], part.view(np.uint32)[0])


@jit
def _stores(x, out, n):
    v.store_f16(out, n, v.load_f32(x, 0))
    v.store_f16(out, n + 32, v.hmax(v.load_f32(x, 0)))


def test_f16_stores_round_to_even_and_touch_nothing_else():
    x = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65504, 65520, 1e-8, -0.0, *range(10)], np.float32)
    out = np.full(41, 7, np.uint8)
    _stores(x, out, 3)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out[3:35].copy().view(np.float16), x.astype(np.float16))
    assert (out[:3] == 7).all() and (out[37:] == 7).all()
