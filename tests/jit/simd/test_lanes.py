"""Lane-wise operations give NumPy's results, NaN, infinities and wrap-around included."""

import numpy as np
import pytest

from kvarn.jit import simd as v
from kvarn.jit.cached import jit

ODD = np.array(
    "0 -0 1.5 -2.5 0.5 -0.5 inf -inf nan 1e-45 3.4e38 -1e-38 7 8 126.5 2".split(), np.float32
)
load_f32x8 = v.loader(v.f32x8.ir, v.f32x8)


@jit
def _floats(a, b, c, out):
    x, y, z = v.load_f32(a, 0), v.load_f32(b, 0), v.load_f32(c, 0)
    v.store(out, 0, x + y)
    v.store(out, 64, x - y)
    v.store(out, 128, x * y)
    v.store(out, 192, x / y)
    v.store(out, 256, v.fma(x, y, z))
    v.store(out, 320, v.vabs(x))
    v.store(out, 384, v.rint(x))
    acc = x
    acc += z
    v.store(out, 448, acc)


def test_float_operators_equal_numpy():
    b = np.roll(ODD, 3)
    c = np.arange(16, dtype=np.float32) - 7.25
    out = np.empty((8, 16), np.float32)
    _floats(ODD, b, c, out)
    with np.errstate(all="ignore"):
        exact_fma = (ODD.astype(np.float64) * b + c).astype(np.float32)
        expected = [
            *(ODD + b, ODD - b, ODD * b, ODD / b, exact_fma, np.abs(ODD), np.rint(ODD)),
            ODD + c,
        ]
    for actual, reference in zip(out, expected, strict=True):
        np.testing.assert_array_equal(actual, reference)


@jit
def _reductions(a, b, out):
    x, y = v.load_f32(a, 0), v.load_f32(b, 0)
    low = load_f32x8(a, 0)
    v.store(out, 0, v.vmax(x, y))
    v.store(out, 64, v.vmin(x, y))
    return v.hsum(x), v.hmax(x), v.hsum(low), v.hmax(low)


def test_sums_and_maxima():
    rng = np.random.default_rng(1)
    a, b = rng.integers(-99, 99, (2, 16)).astype(np.float32)  # whole numbers: sums are exact
    out = np.empty((2, 16), np.float32)
    reductions = _reductions(a, b, out)
    assert reductions == (a.sum(), a.max(), a[:8].sum(), a[:8].max())
    np.testing.assert_array_equal(out, [np.maximum(a, b), np.minimum(a, b)])


@jit
def _integers(a, b, out):
    x, y = v.load_i32(a, 0), v.load_i32(b, 0)
    v.store(out, 0, x + y)
    v.store(out, 64, x - y)
    v.store(out, 128, x * y)
    v.store(out, 192, x ^ y)
    v.store(out, 256, x & y)
    v.store(out, 320, x | y)
    v.store(out, 384, x >> 4)
    v.store(out, 448, x << 3)
    v.store(out, 512, v.imax(x, y))
    v.store(out, 576, v.imin(x, y))
    v.store(out, 640, v.ctpop(x))
    v.store(out, 704, x & -16)
    return v.hsum_i32(y)


def test_integer_operators_equal_numpy():
    limits = np.iinfo(np.int32)
    rng = np.random.default_rng(2)
    a = rng.integers(limits.min, limits.max, 16, dtype=np.int32)
    b = rng.integers(-1000, 1000, 16, dtype=np.int32)
    a[:3] = limits.min, limits.max, -1
    out = np.empty((12, 16), np.int32)
    assert _integers(a, b, out) == b.sum()
    bits = [f"{x & 0xFFFFFFFF:b}".count("1") for x in a.tolist()]
    expected = [
        *(a + b, a - b, a * b, a ^ b, a & b, a | b, a.view(np.uint32) >> 4, a << 3),
        *(np.maximum(a, b), np.minimum(a, b), bits, a & -16),
    ]
    for actual, reference in zip(out, expected, strict=True):
        np.testing.assert_array_equal(actual, np.asarray(reference).astype(np.int32))


@jit
def _conversions(f, i, h, out_f, out_i, out_w):
    bytes_ = v.load_i8x16(i, 0)
    v.store(out_f, 0, v.to_f32(bytes_))
    v.store(out_f, 64, v.to_f32(v.widen_i32(bytes_)))
    v.store(out_f, 128, v.to_f32(v.widen_i16(bytes_)))
    v.store(out_i, 0, v.to_i32(v.load_f32(f, 0)))
    v.store(out_i, 64, v.bits_i32(v.load_f32(f, 0)))
    v.store(out_i, 128, v.bits_i32(v.load_i8(f, 0)))
    v.store(out_w, 0, v.to_i8(v.load_f32(f, 0)))
    v.store(out_w, 16, v.narrow_i8(v.load_i32(h, 0)))
    v.store(out_w, 32, v.narrow_i8(v.narrow_i16(v.load_i32(h, 0))))


def test_conversions():
    f = np.array([0.5, 1.5, -0.5, -1.5, 2.49, -127.5, 126.5, 127, *range(-4, 4)], np.float32)
    i = np.array([-128, 127, -1, 0, *range(12)], np.int8)
    h = np.array([1 << 20, -1, 255, 256, -129, *range(11)], np.int32)
    floats, ints = np.empty((3, 16), np.float32), np.empty((3, 16), np.int32)
    bytes_ = np.empty((3, 16), np.int8)
    _conversions(f, i, h, floats, ints, bytes_)
    np.testing.assert_array_equal(floats, [i, i, i])
    np.testing.assert_array_equal(ints, [np.rint(f), f.view(np.int32), f.view(np.int32)])
    narrow = h.astype(np.int8)
    np.testing.assert_array_equal(bytes_, [np.rint(f), narrow, narrow])


@jit
def _exp(x, out):
    for i in range(0, x.size, 16):
        v.store(out, i * 4, v.vexp(v.load_f32(x, i * 4)))


def test_exp_is_within_an_ulp_and_never_wild():
    rng = np.random.default_rng(3)
    x = rng.uniform(-87, 88, 16 * 512).astype(np.float32)
    out = np.empty_like(x)
    _exp(x, out)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(out - exact) / np.spacing(exact.astype(np.float32))) <= 1.5
    edge = np.zeros(16, np.float32)
    edge[:4] = -np.inf, -1e30, -200, 0
    _exp(edge, out[:16])
    assert np.all(out[:3] >= 0) and np.all(out[:3] < 1.3e-38)
    assert out[3] == 1


@jit
def _mixed(a):
    return v.load_f32(a, 0) + load_f32x8(a, 0)


def test_vectors_of_different_length_do_not_mix():
    from numba.core.errors import TypingError

    with pytest.raises(TypingError):
        _mixed(ODD)
