"""Loads, stores and prefetches at an array, or an integer address, plus an offset in bytes.

The instructions assume no alignment, so every offset is legal; at an aligned address that costs
nothing. But unaligned buffers are slow, so take them from `arena.aligned`.
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
    f32x16,
    first_lanes_mask,
    i8x16,
    i8x32,
    i8x64,
    i16x16,
    i32x16,
    i64x8,
    splat,
    vty,
)

__all__ = [
    "at", "at_item", "bcast_f32", "bcast_i32_i8", "emit_prefetch", "load_f16",
    "load_f32", "load_half", "load_i8", "load_i8_f32", "load_i8x16", "load_i8x32", "load_i16x16",
    "load_i32", "load_i64", "load_one_f32", "load_tail", "load_u8", "load_u16", "load_u32",
    "loader", "pointer", "prefetch", "prefetch_l1", "prefetch_to_write", "read", "store",
    "store_f16", "store_tail", "write",
]  # fmt: skip


def pointer(ctx: Any, b: ir.IRBuilder, ty: Any, val: ir.Value, off: ir.Value, llty: ir.Type) -> Any:
    """Pointer to `llty`, `off` bytes after `val`: an array or an integer address, of type `ty`."""
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
    """Prefetch the cache line of an i8*; locality: 3 for L1, 2 for L2."""
    options = [ir.Constant(I32, k) for k in (to_write, locality, 1)]
    call(b, "llvm.prefetch.p0", ir.VoidType(), place, *options)


def loader(llty: ir.Type, ret: Any, convert: Callable[..., Any] = lambda b, v: v) -> Any:
    """A function `load(array_or_address, byte_offset)` for kernels.

    llty: the LLVM type to read; ret: its Numba type after `convert(builder, value)`.
    """

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


load_f32, load_i32, load_i64 = (loader(v.ir, v) for v in (f32x16, i32x16, i64x8))
load_i8, load_i8x32, load_i8x16 = (loader(v.ir, v) for v in (i8x64, i8x32, i8x16))
load_i16x16 = loader(i16x16.ir, i16x16)

# One number.
load_half = loader(F16, types.float32, _to_f32)  # an f16, as float32
load_u8 = loader(I8, types.uint8)
load_u16 = loader(I16, types.uint16)
load_u32 = loader(I32, types.uint32)
load_one_f32 = loader(F32, types.float32)

# 16 numbers of another type, as float32.
load_f16 = loader(vty(F16, 16), f32x16, _to_f32)
load_i8_f32 = loader(i8x16.ir, f32x16, lambda b, v: b.sitofp(v, f32x16.ir))

# One number of memory in every lane.
bcast_f32 = loader(F32, f32x16, lambda b, v: splat(b, v, 16))
bcast_i32_i8 = loader(I32, i8x64, lambda b, v: b.bitcast(splat(b, v, 16), i8x64.ir))  # 4 bytes


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


@intrinsic
def load_tail(typingctx, src, off, count):
    """The last floats of a row: `count` of them in the first lanes, zeros in the others."""

    def codegen(ctx, b, sig, vals):
        ty = f32x16.ir
        align, mask = ir.Constant(I32, 4), first_lanes_mask(b, vals[2])
        place, zeros = pointer(ctx, b, src, vals[0], vals[1], ty), ir.Constant(ty, None)
        return call(b, "llvm.masked.load.v16f32.p0", ty, place, align, mask, zeros)

    return f32x16(src, types.intp, types.intp), codegen


@intrinsic
def store_tail(typingctx, dst, off, count, vec):
    """Store the first `count` lanes, the last floats of a row."""

    def codegen(ctx, b, sig, vals):
        align, mask = ir.Constant(I32, 4), first_lanes_mask(b, vals[2])
        place = pointer(ctx, b, dst, vals[0], vals[1], f32x16.ir)
        void = ir.VoidType()
        call(b, "llvm.masked.store.v16f32.p0", void, vals[3], place, align, mask)
        return ctx.get_dummy_value()

    return types.void(dst, types.intp, types.intp, vec), codegen


def _prefetch(locality: int, description: str, to_write: int = 0) -> Any:
    @intrinsic
    def prefetch(typingctx, src, off):
        def codegen(ctx, b, sig, vals):
            p = pointer(ctx, b, sig.args[0], vals[0], vals[1], I8)
            emit_prefetch(b, p, locality, to_write)
            return ctx.get_dummy_value()

        return types.void(src, types.intp), codegen

    prefetch.__doc__ = description
    return prefetch


prefetch = _prefetch(
    2, "Fetch a cache line into L2, for gathers and indexes: L1 has few fill buffers."
)
prefetch_l1 = _prefetch(3, "Fetch a cache line into L1, for long runs of neighbouring lines.")
prefetch_to_write = _prefetch(3, "Fetch a cache line into L1, to be written to.", to_write=1)
