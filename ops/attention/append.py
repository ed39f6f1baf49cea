"""append_kv: round or quantise new keys and values and write them into their tiles."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.launch.atomics import word
from ...jit.launch.legacy_define import step
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
    """Encode n floats of x (a head's key or value), padded through the floats at `buffer`."""
    for i in range(n):
        v.store(buffer, 4 * i, v.load_one_f32(x, 4 * i))
    for i in range(n, 32 * blocks):
        v.store(buffer, 4 * i, np.float32(0))
    if kind == 2:
        rotate_row(buffer, 32 * blocks, rotation)
    for i in range(blocks):
        if kind == 0:
            encode_block(0, buffer + 128 * i, row + 64 * i, scale)
        elif kind == 1:
            encode_block(1, buffer + 128 * i, row + 32 * i, scale + 2 * i)
        else:
            encode_block(2, buffer + 128 * i, row + 16 * i, scale + 2 * i)


@jit
def _put_token(k, v_new, n, tile, r, facts, buffer):
    """Row r of a tile: the key and the value of one head."""
    k_kind, v_kind = word(facts, 0), word(facts, 8)
    blocks, rotation = word(facts, 16), word(facts, 24)
    scale = tile + word(facts, 72) + r * word(facts, 88)
    _put_row(k, n, k_kind, blocks, rotation, buffer, tile + r * word(facts, 48), scale)
    row = tile + word(facts, 64) + r * word(facts, 56)
    _put_row(v_new, n, v_kind, blocks, rotation, buffer, row, scale + word(facts, 80))


@step("iiiiiiiiii")
def append_kernel(
    part, parts, ticket, k, v_new, n_tokens, n_heads, n, segments, start, facts, buffers, stride
):  # fmt: skip
    """Store k and v_new (n_tokens, n_heads, n) from position [start] on; all arrays are addresses.

    facts: see append_facts; buffers: a padded row of floats for each part, `stride` bytes apart.
    Reads 8 bytes an element of head_dim (K and V), writes what the types take.
    """
    tile_bytes, head_bytes = word(facts, 32), word(facts, 40)
    begin, buffer = word(start, 0), buffers + part * stride
    for t in range(n_tokens * part // parts, n_tokens * (part + 1) // parts):
        place = (begin + t) % SEGMENT
        base = word(segments, (begin + t) // SEGMENT * 8) + place // TILE * tile_bytes
        for j in range(n_heads):
            row = 4 * n * (t * n_heads + j)
            _put_token(k + row, v_new + row, n, base + j * head_bytes, place % TILE, facts, buffer)
