"""The kernel of `append_kv`: rounds or quantises new keys and values, writes them into tiles."""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.launch.atomics import word
from ...jit.launch.define import Share, bounds, kernel
from ...jit.launch.views import address, of_thread
from ...jit.simd import at_item, read, write
from .arguments import AppendMemory, CacheAddresses, NewTokens
from .layout import BLOCK, F16, Q4_0, Q8_0, SEGMENT, TILE, kv_type
from .rotation import rotate_row
from .shape import VEC


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
        write(b, b.fptrunc(x[i], v.vty(ir.HalfType(), 16)), row, 32 * i)


def _encode_q8_0(b, x, row, scale):
    """d = max|x| / 127, q = round(x / d), halves away from zero: as ggml."""
    top = v.call(b, "llvm.maxnum.v16f32", VEC, *(_call1(b, "fabs", y) for y in x), fast=("nnan",))
    d = b.fdiv(_reduce(b, "fmax", top), ir.Constant(v.F32, 127.0))
    factor = v.splat(b, _inverse(b, d), 16)
    for i in range(2):
        q = _call1(b, "round", b.fmul(x[i], factor))
        q = b.trunc(b.fptosi(q, v.vty(v.I32, 16)), v.vty(v.I8, 16))
        write(b, q, row, 16 * i)
    write(b, b.fptrunc(d, ir.HalfType()), scale)


def _first_extreme(b, x, top):
    """The first element of the block whose magnitude is `top`, with its sign."""
    lane = [ir.Constant(v.vty(v.I32, 16), list(range(16 * i, 16 * i + 16))) for i in range(2)]
    none, wide = v.const(lane[0].type, 99), v.splat(b, top, 16)
    codes = []
    for y, n in zip(x, lane):  # position * 2 + sign bit, of the elements that equal the top
        sign = b.lshr(b.bitcast(y, n.type), v.const(n.type, 31))
        code = b.or_(b.shl(n, v.const(n.type, 1)), sign)
        codes.append(b.select(b.fcmp_ordered("==", _call1(b, "fabs", y), wide), code, none))
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
    write(b, b.trunc(both, v.vty(v.I8, 16)), row)
    write(b, b.fptrunc(d, ir.HalfType()), scale)


_ENCODE = {F16: _encode_f16, Q8_0: _encode_q8_0, Q4_0: _encode_q4_0}


@intrinsic(prefer_literal=True)
def encode_block(typingctx, code, i, x, row, scales):
    """Encode 32 floats as block i of a row of a KV type; addresses: of block 0."""
    kind = kv_type(code.literal_value)

    def codegen(ctx, b, sig, vals):
        _, i, x, row, scales = vals
        x, row = at_item(b, x, i, 4 * BLOCK), at_item(b, row, i, kind.block_bytes)
        scale = at_item(b, scales, i, kind.scale_bytes)
        _ENCODE[kind.code](b, [read(b, x, VEC, 64 * n) for n in range(2)], row, scale)
        return ctx.get_dummy_value()

    return types.void(code, v.INTP, v.INTP, v.INTP, v.INTP), codegen


class _Target(NamedTuple):
    """The destination of a row: its KV type's code, addresses of its first block and scale."""

    code: int
    rotates: int
    row: int
    scales: int


@jit
def _put_row(x, n, layout, target, padded):
    """Encode n floats of x (a head's key or value); pads them in the memory at `padded`."""
    for i in range(n):
        v.store(padded, 4 * i, v.load_one_f32(x, 4 * i))
    for i in range(n, BLOCK * layout.blocks):
        v.store(padded, 4 * i, np.float32(0))
    if target.rotates:
        rotate_row(padded, BLOCK * layout.blocks, layout.rotation)
    for i in range(layout.blocks):
        if target.code == F16:
            encode_block(F16, i, padded, target.row, target.scales)
        elif target.code == Q8_0:
            encode_block(Q8_0, i, padded, target.row, target.scales)
        else:
            encode_block(Q4_0, i, padded, target.row, target.scales)


@jit
def put_token(key, value, n, tile, r, layout, padded):
    """Write row r of a tile: the key and the value of one head; addresses."""
    scales = tile + layout.scale_offset + r * layout.scale_row_bytes
    row = tile + r * layout.k_row_bytes
    _put_row(key, n, layout, _Target(layout.k_type, layout.rotates_k, row, scales), padded)
    row = tile + layout.v_offset + r * layout.v_row_bytes
    target = _Target(layout.v_type, layout.rotates_v, row, scales + layout.v_scale)
    _put_row(value, n, layout, target, padded)


@kernel
def append_kernel(share: Share, new: NewTokens, cache: CacheAddresses, memory: AppendMemory):
    """Store new tokens from the position at `cache.start` on.

    Reads 8 bytes per element of head_dim (K and V), writes the bytes of the KV types.
    """
    layout, padded = memory.layout, address(of_thread(memory.padded, share.part))
    begin = word(cache.start, 0)
    first, stop = bounds(share, new.n_tokens)
    for t in range(first, stop):
        place = (begin + t) % SEGMENT
        segment = word(cache.segments, 8 * ((begin + t) // SEGMENT))
        base = segment + place // TILE * layout.tile_bytes
        for j in range(new.n_kv_heads):
            row, tile = 4 * new.head_dim * (t * new.n_kv_heads + j), base + j * layout.head_bytes
            put_token(new.k + row, new.v + row, new.head_dim, tile, place % TILE, layout, padded)
