"""append_kv: round or quantise new keys and values and write them into their tiles."""

import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic

from .. import simd as v
from ..cache import jit
from .layout import KV_TYPES, SEGMENT, TILE
from .rotation import rotate_row
from .shape import VEC, at, read, write


def _call1(b, name, x):
    return v.call(b, f"llvm.{name}.v16f32", x.type, x)


def _reduce(b, name, x):
    return v.call(b, f"llvm.vector.reduce.{name}.v16f32", v.F32, x, fast=("nnan",))


def _inverse(b, d):
    """1 / d, and 0 for d = 0: a block of zeros stays zeros."""
    zero = ir.Constant(v.F32, 0.0)
    return b.select(b.fcmp_ordered("==", d, zero), zero, b.fdiv(ir.Constant(v.F32, 1.0), d))


def _encode_f16(b, x, row, scale):
    for i in range(2):
        write(b, row, 32 * i, b.fptrunc(x[i], v.vty(ir.HalfType(), 16)))


def _encode_q8_0(b, x, row, scale):
    """d = max|x| / 127, q = round(x / d), halves away from zero: as ggml."""
    top = v.call(b, "llvm.maxnum.v16f32", VEC, *(_call1(b, "fabs", y) for y in x), fast=("nnan",))
    d = b.fdiv(_reduce(b, "fmax", top), ir.Constant(v.F32, 127.0))
    factor = v.splat(b, _inverse(b, d), 16)
    for i in range(2):
        q = _call1(b, "round", b.fmul(x[i], factor))
        q = b.trunc(b.fptosi(q, v.vty(v.I32, 16)), v.vty(v.I8, 16))
        write(b, row, 16 * i, q)
    write(b, scale, 0, b.fptrunc(d, ir.HalfType()))


def _first_extreme(b, x, top):
    """The first element of the block whose magnitude is `top`, with its sign."""
    lane = [ir.Constant(v.vty(v.I32, 16), list(range(16 * i, 16 * i + 16))) for i in range(2)]
    far, wide = v.const(lane[0].type, 99), v.splat(b, top, 16)
    codes = []
    for y, n in zip(x, lane):  # position * 2 + sign bit, of elements that reach the top
        sign = b.lshr(b.bitcast(y, n.type), v.const(n.type, 31))
        code = b.or_(b.shl(n, v.const(n.type, 1)), sign)
        codes.append(b.select(b.fcmp_ordered("==", _call1(b, "fabs", y), wide), code, far))
    least = b.select(b.icmp_signed("<", *codes), *codes)
    least = v.call(b, "llvm.vector.reduce.smin.v16i32", v.I32, least)
    negative = b.trunc(least, ir.IntType(1))
    return b.select(negative, b.fneg(top), top)


def _encode_q4_0(b, x, row, scale):
    """d = (extreme with its sign) / -8, q = min(15, trunc(x / d + 8.5)): as ggml."""
    top = v.call(b, "llvm.maxnum.v16f32", VEC, *(_call1(b, "fabs", y) for y in x), fast=("nnan",))
    extreme = _first_extreme(b, x, _reduce(b, "fmax", top))
    d = b.fdiv(extreme, ir.Constant(v.F32, -8.0))
    factor, q = v.splat(b, _inverse(b, d), 16), []
    for y in x:
        n = b.fptosi(v.fmuladd(b, y, factor, v.const(VEC, 8.5)), v.vty(v.I32, 16))
        q.append(b.select(b.icmp_signed("<", n, v.const(n.type, 15)), n, v.const(n.type, 15)))
    both = b.or_(q[0], b.shl(q[1], v.const(q[1].type, 4)))
    write(b, row, 0, b.trunc(both, v.vty(v.I8, 16)))
    write(b, scale, 0, b.fptrunc(d, ir.HalfType()))


_ENCODE = {"f16": _encode_f16, "q8_0": _encode_q8_0, "q4_0": _encode_q4_0}
_ROW_BYTES = {"f16": 64, "q8_0": 32, "q4_0": 16}


@intrinsic(prefer_literal=True)
def encode_block(typingctx, kind, x, row, scale):
    """Encode 32 floats at address x into a block at `row` and its scale at `scale`."""
    encode = _ENCODE[KV_TYPES[kind.literal_value]]

    def codegen(ctx, b, sig, vals):
        x, row, scale = (at(b, n) for n in vals[1:])
        encode(b, [read(b, x, 64 * i, VEC) for i in range(2)], row, scale)
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n), codegen


@jit
def _put_row(x, n, kind, blocks, rotation, buffer, row, scale):
    """Encode n floats of the array x (a head's key or value), padded through `buffer`."""
    for i in range(n):
        buffer[i] = x[i]
    for i in range(n, 32 * blocks):
        buffer[i] = 0.0
    address = buffer.ctypes.data
    if kind == 2:
        rotate_row(address, 32 * blocks, rotation)
    for i in range(blocks):
        if kind == 0:
            encode_block(0, address + 128 * i, row + 64 * i, scale)
        elif kind == 1:
            encode_block(1, address + 128 * i, row + 32 * i, scale + 2 * i)
        else:
            encode_block(2, address + 128 * i, row + 16 * i, scale + 2 * i)


@jit
def _append_tokens(k, v_new, segments, start, facts, buffer, first, last):
    """Rows of tokens first .. last-1 of the arrays, all heads."""
    k_kind, v_kind, blocks, rotation = facts[0], facts[1], facts[2], facts[3]
    tile_bytes, head_bytes, k_row, v_row = facts[4], facts[5], facts[6], facts[7]
    v_offset, scale_offset, v_scale, scale_row = facts[8], facts[9], facts[10], facts[11]
    _, n_heads, n = k.shape
    for t in range(first, last):
        place = (start + t) % SEGMENT
        base = segments[(start + t) // SEGMENT] + place // TILE * tile_bytes
        r = place % TILE
        for j in range(n_heads):
            tile = base + j * head_bytes
            scale = tile + scale_offset + r * scale_row
            _put_row(k[t, j], n, k_kind, blocks, rotation, buffer, tile + r * k_row, scale)
            row = tile + v_offset + r * v_row
            _put_row(v_new[t, j], n, v_kind, blocks, rotation, buffer, row, scale + v_scale)


@jit(parallel=True)
def append_kernel(k, v_new, segments, start, facts, buffers):
    """facts: see append_facts; buffers float32[threads, padded]: one padded row a thread.

    Reads 8 bytes an element of head_dim (K and V), writes what the types take.
    """
    n_tokens, parts = k.shape[0], buffers.shape[0]
    if parts == 1:
        _append_tokens(k, v_new, segments, start, facts, buffers[0], 0, n_tokens)
    else:
        for part in prange(parts):
            first, last = n_tokens * part // parts, n_tokens * (part + 1) // parts
            _append_tokens(k, v_new, segments, start, facts, buffers[part], first, last)


def append_facts(layout) -> np.ndarray:
    """A TileLayout as the integers that append_kernel reads."""
    return np.array(
        [
            *layout.codes,
            layout.rotation,
            layout.tile_bytes,
            layout.head_bytes,
            layout.k_row_bytes,
            layout.v_row_bytes,
            layout.v_offset,
            layout.scale_offset,
            layout.v_scale,
            layout.scale_row_bytes,
        ],
        np.int64,
    )
