"""A matrix times a vector; each output is summed in the order of the inputs."""

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.simd import bcast_f32, load_f32, store


@jit
def dense_four(x, stride, n_in, weights, bias, n_out, y, y_stride):
    """`dense` of four vectors, `stride` bytes apart, for one reading of the weights.

    Each output has the bits that `dense` gives it.
    """
    x1, x2, x3 = x + stride, x + 2 * stride, x + 3 * stride
    for o in range(0, n_out, 16):
        a = load_f32(bias, 4 * o)
        b, c, d = a, a, a
        for e in range(n_in):
            w = load_f32(weights, 4 * (e * n_out + o))
            a = v.fma(w, bcast_f32(x, 4 * e), a)
            b = v.fma(w, bcast_f32(x1, 4 * e), b)
            c = v.fma(w, bcast_f32(x2, 4 * e), c)
            d = v.fma(w, bcast_f32(x3, 4 * e), d)
        store(y, 4 * o, a)
        store(y, 4 * o + y_stride, b)
        store(y, 4 * o + 2 * y_stride, c)
        store(y, 4 * o + 3 * y_stride, d)


@jit
def dense(x, n_in, weights, bias, n_out, y):
    """y = W x + b at addresses of float32; weights [n_in][n_out], n_out a multiple of 16."""
    o = 0
    while o + 32 <= n_out:
        a, b = load_f32(bias, 4 * o), load_f32(bias, 4 * o + 64)
        for e in range(n_in):
            factor = bcast_f32(x, 4 * e)
            a = v.fma(load_f32(weights, 4 * (e * n_out + o)), factor, a)
            b = v.fma(load_f32(weights, 4 * (e * n_out + o) + 64), factor, b)
        store(y, 4 * o, a)
        store(y, 4 * o + 64, b)
        o += 32
    if o < n_out:
        a = load_f32(bias, 4 * o)
        for e in range(n_in):
            a = v.fma(load_f32(weights, 4 * (e * n_out + o)), bcast_f32(x, 4 * e), a)
        store(y, 4 * o, a)
