"""Loads, stores and prefetches at `array or integer address + byte offset`, for kernels and (`at`,
`read`, `write`, `emit_prefetch`) for emitters.

Vector accesses are emitted with alignment 1, so every offset is legal; an aligned address is as
fast as an aligned instruction.  Give kernels aligned buffers all the same (`arena.aligned`).
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .types import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    call,
    f32x4,
    f32x8,
    f32x16,
    i8x16,
    i8x32,
    i8x64,
    i16x16,
    i32x4,
    i32x8,
    i32x16,
    i64x4,
    i64x8,
    splat,
    vty,
)


def pointer(ctx: Any, b: ir.IRBuilder, ty: Any, val: ir.Value, off: ir.Value, llty: ir.Type) -> Any:
    """Typed pointer to `val` (array, or integer address) + `off` bytes."""
    if isinstance(ty, types.Array):
        base = b.bitcast(ctx.make_array(ty)(ctx, b, val).data, I8.as_pointer())
    else:
        base = b.inttoptr(val, I8.as_pointer())
    return b.bitcast(b.gep(base, [off]), llty.as_pointer())


def at(b: ir.IRBuilder, place: ir.Value, offset: int | ir.Value = 0) -> Any:
    """i8* to a place (an integer address, or an i8*) + `offset` bytes."""
    if not isinstance(place.type, ir.PointerType):
        place = b.inttoptr(place, I8.as_pointer())
    if isinstance(offset, int):
        if not offset:
            return place
        offset = ir.Constant(I64, offset)
    return b.gep(place, [offset])


def at_item(b: ir.IRBuilder, place: ir.Value, i: ir.Value, n_bytes: int) -> Any:
    """i8* to item `i` of those of `n_bytes` each that begin at a place."""
    return at(b, place, b.mul(i, ir.Constant(I64, n_bytes)))


def read(b: ir.IRBuilder, place: ir.Value, ty: ir.Type, offset: int = 0) -> Any:
    """Load a `ty` from a place + `offset` bytes, aligned or not."""
    value = b.load(b.bitcast(at(b, place, offset), ty.as_pointer()))
    value.align = 1
    return value


def write(b: ir.IRBuilder, value: ir.Value, place: ir.Value, offset: int = 0) -> None:
    """Store a value at a place + `offset` bytes, aligned or not."""
    b.store(value, b.bitcast(at(b, place, offset), value.type.as_pointer())).align = 1


def emit_prefetch(b: ir.IRBuilder, place: ir.Value, locality: int = 3, to_write: int = 0) -> None:
    """Ask for the cache line of an i8*; locality: 3 for L1, 2 for L2."""
    how = [ir.Constant(I32, k) for k in (to_write, locality, 1)]
    call(b, "llvm.prefetch.p0", ir.VoidType(), place, *how)


def loader(llty: ir.Type, ret: Any, convert: Callable[..., Any] = lambda b, v: v) -> Any:
    """A function `load(array_or_address, byte_offset)` for kernels; may convert what it read."""

    @intrinsic
    def load(typingctx, src, off):
        def codegen(ctx, b, sig, vals):
            v = b.load(pointer(ctx, b, sig.args[0], vals[0], vals[1], llty))
            v.align = 1
            return convert(b, v)

        return ret(src, types.intp), codegen

    return load


def _to_f32(b, v):
    n = v.type.count if isinstance(v.type, ir.VectorType) else 0
    return b.fpext(v, vty(F32, n) if n else F32)


def _bf16_to_f32(b, v):
    n = v.type.count
    wide = b.shl(b.zext(v, vty(I32, n)), ir.Constant(vty(I32, n), [16] * n))
    return b.bitcast(wide, vty(F32, n))


def _splat_bytes(n: int) -> Callable[..., Any]:
    return lambda b, v: b.bitcast(splat(b, v, n // 4), vty(I8, n))


load_f32, load_f32x8, load_f32x4 = (loader(v.ir, v) for v in (f32x16, f32x8, f32x4))
load_i32, load_i32x8, load_i32x4 = (loader(v.ir, v) for v in (i32x16, i32x8, i32x4))
load_i64, load_i64x4 = (loader(v.ir, v) for v in (i64x8, i64x4))
load_i8, load_i8x32, load_i8x16 = (loader(v.ir, v) for v in (i8x64, i8x32, i8x16))
load_i16x16 = loader(vty(I16, 16), i16x16)

# One number.
load_half = loader(F16, types.float32, _to_f32)  # an f16, as float32
load_u8 = loader(I8, types.uint8)
load_u16 = loader(I16, types.uint16)
load_u32 = loader(I32, types.uint32)
load_one_f32 = loader(F32, types.float32)

# 16 or 8 numbers of another type, as float32.
load_f16 = loader(vty(F16, 16), f32x16, _to_f32)
load_f16x8 = loader(vty(F16, 8), f32x8, _to_f32)
load_f16x4 = loader(vty(F16, 4), f32x4, _to_f32)
load_bf16 = loader(vty(I16, 16), f32x16, _bf16_to_f32)
load_bf16x8 = loader(vty(I16, 8), f32x8, _bf16_to_f32)
load_i8_f32 = loader(vty(I8, 16), f32x16, lambda b, v: b.sitofp(v, vty(F32, 16)))
load_i8_f32x8 = loader(vty(I8, 8), f32x8, lambda b, v: b.sitofp(v, vty(F32, 8)))

# One number of memory in every lane.
bcast_f32 = loader(F32, f32x16, lambda b, v: splat(b, v, 16))
bcast_f32x8 = loader(F32, f32x8, lambda b, v: splat(b, v, 8))
bcast_i32 = loader(I32, i32x16, lambda b, v: splat(b, v, 16))
bcast_i32x8 = loader(I32, i32x8, lambda b, v: splat(b, v, 8))
bcast_i64 = loader(I64, i64x8, lambda b, v: splat(b, v, 8))
bcast_i32_i8 = loader(I32, i8x64, _splat_bytes(64))  # 4 bytes, 16 times
bcast_i32_i8x32 = loader(I32, i8x32, _splat_bytes(32))
bcast_half = loader(F16, f32x16, lambda b, v: splat(b, _to_f32(b, v), 16))
bcast_half8 = loader(F16, f32x8, lambda b, v: splat(b, _to_f32(b, v), 8))


@intrinsic
def store(typingctx, dst, off, vec):
    """`store(array_or_address, byte_offset, vector or number)`."""

    def codegen(ctx, b, sig, vals):
        p = pointer(ctx, b, sig.args[0], vals[0], vals[1], vals[2].type)
        b.store(vals[2], p).align = 1
        return ctx.get_dummy_value()

    return types.void(dst, types.intp, vec), codegen


@intrinsic
def store_f16(typingctx, dst, off, vec):
    """Round a vector or number of float32 to f16 (nearest even) and store it."""

    def codegen(ctx, b, sig, vals):
        v = vals[2]
        half = vty(F16, v.type.count) if isinstance(v.type, ir.VectorType) else F16
        b.store(b.fptrunc(v, half), pointer(ctx, b, sig.args[0], vals[0], vals[1], half)).align = 1
        return ctx.get_dummy_value()

    return types.void(dst, types.intp, vec), codegen


def _prefetch(locality: int, what: str, to_write: int = 0) -> Any:
    @intrinsic
    def prefetch(typingctx, src, off):
        def codegen(ctx, b, sig, vals):
            p = pointer(ctx, b, sig.args[0], vals[0], vals[1], I8)
            emit_prefetch(b, p, locality, to_write)
            return ctx.get_dummy_value()

        return types.void(src, types.intp), codegen

    prefetch.__doc__ = what
    return prefetch


prefetch = _prefetch(2, "Ask for a cache line into L2 (L1's few fill buffers stay free): gathers.")
prefetch_l1 = _prefetch(3, "Ask for a cache line into L1: dense scans.")
prefetch_to_write = _prefetch(3, "Ask for a cache line into L1, to be written to.", to_write=1)
