"""Rearrangements put every lane where NumPy's slicing puts it."""

import numpy as np
from numba import types
from numba.extending import intrinsic

from kvarn.jit import simd as v
from kvarn.jit.cached import jit


@jit
def _bytes(a, out):
    x = v.load_i8x16(a, 0)
    v.store(out, 0, v.nibbles(x))
    v.store(out, 32, v.join(v.low_nibbles(x), v.high_nibbles(x)))
    v.store(out, 64, v.high_half(v.join(x, v.load_i8x16(a, 5))))
    v.store(out, 80, v.low_half(v.load_i8(a, 0)))
    return v.hsum_high(v.zip_f32(1.0, 2.0))


def test_nibbles_and_halves():
    a = np.random.default_rng(5).integers(0, 256, 64, dtype=np.uint8)
    out = np.empty(112, np.uint8)
    assert _bytes(a, out) == 16
    order = np.r_[a[:16] & 15, a[:16] >> 4]
    np.testing.assert_array_equal(out, np.r_[order, order, a[5:21], a[:32]])


@intrinsic
def _transpose(typingctx, src, dst):
    def codegen(ctx, b, sig, vals):
        at = [ctx.get_constant(types.intp, 32 * r) for r in range(16)]
        word8 = v.vty(v.I32, 8)
        rows = [b.load(v.pointer(ctx, b, sig.args[0], vals[0], off, word8)) for off in at]
        for row in rows:
            row.align = 1
        out = v.transpose(b, *rows)
        b.store(out, v.pointer(ctx, b, sig.args[1], vals[1], at[0], out.type)).align = 1
        return ctx.get_dummy_value()

    return types.void(src, dst), codegen


def _tree(lanes):
    @intrinsic
    def tree(typingctx, src, dst):
        def codegen(ctx, b, sig, vals):
            vec, sums = v.vty(v.F32, lanes), v.Tree(b, lanes)
            for t in range(lanes):
                off = ctx.get_constant(types.intp, 4 * lanes * t)
                x = b.load(v.pointer(ctx, b, sig.args[0], vals[0], off, vec))
                x.align = 1
                sums.feed(x)
            zero = ctx.get_constant(types.intp, 0)
            b.store(sums.result, v.pointer(ctx, b, sig.args[1], vals[1], zero, vec)).align = 1
            return ctx.get_dummy_value()

        return types.void(src, dst), codegen

    return tree


_tree16, _tree8 = _tree(16), _tree(8)


@jit
def _many(words, turned, floats, sums16, sums8):
    _transpose(words, turned)
    _tree16(floats, sums16)
    _tree8(floats, sums8)


def test_transpose_and_sums_of_many_vectors():
    rng = np.random.default_rng(6)
    words = rng.integers(0, 1 << 31, (16, 8), dtype=np.int32)
    floats = rng.integers(-99, 99, (16, 16)).astype(np.float32)
    turned, sums16, sums8 = (
        np.empty((8, 16), np.int32),
        np.empty(16, np.float32),
        np.empty(8, np.float32),
    )
    _many(words, turned, floats, sums16, sums8)
    np.testing.assert_array_equal(turned, words.T)
    np.testing.assert_array_equal(sums16, floats.sum(1))
    np.testing.assert_array_equal(sums8, floats.ravel()[:64].reshape(8, 8).sum(1))


@intrinsic
def _swap_tile(typingctx, src, dst):
    """Through a Tile value: both of its vectors, the second first."""
    tile = v.Tile("f32", 2, panels=1, lanes=8)

    def codegen(ctx, b, sig, vals):
        value = v.ir.Constant(ctx.get_value_type(tile), v.ir.Undefined)
        for i in (0, 1):
            off = ctx.get_constant(types.intp, 32 * (1 - i))
            x = b.load(v.pointer(ctx, b, sig.args[0], vals[0], off, v.f32x8.ir))
            x.align = 1
            value = b.insert_value(value, x, i)
        return value

    return tile(src, dst), codegen


@intrinsic
def _store_tile(typingctx, tile, dst):
    def codegen(ctx, b, sig, vals):
        for i in range(sig.args[0].n):
            off = ctx.get_constant(types.intp, 32 * i)
            at = v.pointer(ctx, b, sig.args[1], vals[1], off, v.f32x8.ir)
            b.store(b.extract_value(vals[0], i), at).align = 1
        return ctx.get_dummy_value()

    return types.void(tile, dst), codegen


@jit
def _through_tile(a, out):
    _store_tile(_swap_tile(a, out), out)


def test_tiles_pass_between_functions():
    a, out = np.arange(16, dtype=np.float32), np.empty(16, np.float32)
    _through_tile(a, out)
    np.testing.assert_array_equal(out, np.r_[a[8:], a[:8]])
