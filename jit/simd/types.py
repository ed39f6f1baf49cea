"""Vectors as values: `Vec` is a Numba type that LLVM represents as `<n x elem>`.

A kernel uses a Vec like a number (`acc = fma(a, b, acc)`, `x ^ y`, `w >> 4`). LLVM keeps it in
registers, as many as the CPU needs for its length (one zmm, two ymm or four NEON registers). A
`Tile` is several vectors in one value: an LLVM array, which ends up in registers as well.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

__all__ = [
    "F16", "F32", "I8", "I16", "I32", "I64", "INTP", "Tile", "Vec", "call", "const", "emit_join",
    "emit_transpose_8", "emits", "emits_by", "emits_for", "f32x8", "f32x16", "i8x32", "i16x8",
    "i16x16", "i32x16", "same_vec", "shuffle", "splat", "suffix", "vty",
]  # fmt: skip

ELEM = {
    "i8": ir.IntType(8),
    "i16": ir.IntType(16),
    "i32": ir.IntType(32),
    "i64": ir.IntType(64),
    "f16": ir.HalfType(),
    "f32": ir.FloatType(),
}
I8, I16, I32, I64, F16, F32 = (ELEM[k] for k in ("i8", "i16", "i32", "i64", "f16", "f32"))
INTP = types.intp


class Vec(types.Type):
    """`n` elements of type `elem` ("i8" … "f32")."""

    def __init__(self, elem: str, n: int) -> None:
        self.elem, self.n = elem, n
        super().__init__(name=f"{elem}x{n}")

    @property
    def ir(self) -> ir.VectorType:
        """The LLVM type."""
        return vty(ELEM[self.elem], self.n)


class Tile(types.Type):
    """`n` vectors of `lanes` elements in one value: `panels` vectors for each of `tokens`.

    By the kernels' convention, vector `t * panels + p` belongs to token t and panel p.
    """

    def __init__(self, elem: str, n: int, panels: int = 1, lanes: int = 16) -> None:
        self.elem, self.n, self.lanes = elem, n, lanes
        self.panels, self.tokens = panels, n // panels
        super().__init__(name=f"tile_{elem}x{lanes}_{n}_{panels}")


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, dmm, fe):
        super().__init__(dmm, fe, fe.ir)


@register_model(Tile)
class _TileModel(models.PrimitiveModel):
    def __init__(self, dmm, fe):
        super().__init__(dmm, fe, ir.ArrayType(vty(ELEM[fe.elem], fe.lanes), fe.n))


i8x16, i8x32, i8x64 = (Vec("i8", n) for n in (16, 32, 64))
i16x8, i16x16 = Vec("i16", 8), Vec("i16", 16)
i32x16, i64x8 = Vec("i32", 16), Vec("i64", 8)
f32x8, f32x16 = Vec("f32", 8), Vec("f32", 16)


def vty(elem: ir.Type, n: int) -> ir.VectorType:
    """LLVM's `<n x elem>`."""
    return ir.VectorType(elem, n)


def const(ty: ir.Type, value: Any) -> ir.Constant:
    """A constant; if `ty` is a vector, `value` in every lane."""
    return ir.Constant(ty, [value] * ty.count if isinstance(ty, ir.VectorType) else value)


def call(
    b: ir.IRBuilder, name: str, ret: ir.Type, *args: ir.Value, fast: Sequence[str] = ()
) -> Any:
    """Call the LLVM intrinsic `name`, declaring it on first use."""
    fn = b.module.globals.get(name) or ir.Function(
        b.module, ir.FunctionType(ret, [a.type for a in args]), name
    )
    return b.call(fn, args, fastmath=fast)


def suffix(ty: ir.Type) -> str:
    """A type in the names of LLVM's overloaded intrinsics: `v16f32`, `i32`."""
    if isinstance(ty, ir.VectorType):
        return f"v{ty.count}{suffix(ty.element)}"
    return {ir.HalfType(): "f16", ir.FloatType(): "f32"}.get(ty) or f"i{ty.width}"


def splat(b: ir.IRBuilder, x: ir.Value, n: int) -> ir.Value:
    """A vector with `x` in each of its n lanes."""
    v = b.insert_element(ir.Constant(vty(x.type, n), ir.Undefined), x, ir.Constant(I32, 0))
    return b.shuffle_vector(v, v, const(vty(I32, n), 0))


def shuffle(
    b: ir.IRBuilder, v: ir.Value, lanes: Iterable[int], w: ir.Value | None = None
) -> ir.Value:
    """A vector whose lane i is number `lanes[i]` of the lanes of `v`, followed by those of `w`."""
    order = list(lanes)
    return b.shuffle_vector(v, w or v, ir.Constant(vty(I32, len(order)), order))


def emit_join(b: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    """Two vectors of n lanes -> one of 2n."""
    return shuffle(b, low, range(2 * low.type.count), high)


def emit_transpose_8(b: ir.IRBuilder, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """8 vectors of 8 lanes, transposed in three rounds of shuffles.

    All but the last round stay inside 128-bit halves, where AVX2 shuffles are cheapest.
    """
    pairs = [
        shuffle(b, rows[i], lanes, rows[i + 1])
        for i in (0, 2, 4, 6)
        for lanes in ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15])
    ]
    quads = [
        shuffle(b, pairs[i], lanes, pairs[i + 2])
        for i in (0, 1, 4, 5)
        for lanes in ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15])
    ]
    return [
        shuffle(b, quads[i], lanes, quads[i + 4])
        for lanes in ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])
        for i in range(4)
    ]


def first_lanes_mask(b: ir.IRBuilder, count: ir.Value) -> Any:
    """A mask of the first `count` of 16 lanes."""
    lane = ir.Constant(vty(I32, 16), list(range(16)))
    return b.icmp_signed("<", lane, splat(b, b.trunc(count, I32), 16))


def emits(ret: Any, *want: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: an emitter `f(builder, *ir_values)` becomes a function that kernels can call.

    ret: type of its result; want: types that arguments are cast to (an integer literal to int8).
    For `ret` types.void, the emitter returns nothing.
    """

    def wrap(emit):
        @intrinsic
        def fn(typingctx, *args):
            def codegen(ctx, b, sig, vals):
                # `*args` reaches codegen as one tuple value: unpack it.
                value = emit(b, *cgutils.unpack_tuple(b, vals[0], len(want)))
                return ctx.get_dummy_value() if ret is types.void else value

            return ret(types.StarArgTuple(want)), codegen

        return fn

    return wrap


def emits_by(rule: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """`emits` for arguments of various types: `rule(*their types)` gives the type of the result.

    It gives None for types that do not fit: Numba then raises a TypingError.
    """

    def wrap(emit):
        @intrinsic
        def fn(typingctx, *args):
            given = (
                args[0].types if len(args) == 1 and isinstance(args[0], types.BaseTuple) else args
            )
            ret = rule(*given)
            if ret is None:
                return None
            return ret(types.StarArgTuple(given)), lambda ctx, b, sig, vals: emit(
                b, *cgutils.unpack_tuple(b, vals[0], len(given))
            )

        return fn

    return wrap


def emits_for(meaning: Callable[[Any], Any], returns: Any = None) -> Callable[..., Any]:
    """`emits` for code that depends on a constant: an emitter `f(builder, constant, *ir_values)`
    becomes a function that kernels call with a type that stands for the constant, and values.

    meaning: from that Numba type to the constant. returns: from the constant to the result's type;
    without it, the emitter returns nothing. Integers become int64.
    """

    def wrap(emit):
        @intrinsic(prefer_literal=True)
        def fn(typingctx, first, *args):
            constant = meaning(first)
            given = args[0].types if args and isinstance(args[0], types.StarArgTuple) else args
            given = [types.intp if isinstance(x, types.Integer) else x for x in given]
            out = returns(constant) if returns else types.void

            def codegen(ctx, b, sig, vals):
                value = emit(b, constant, *cgutils.unpack_tuple(b, vals[1], len(given)))
                return value if returns else ctx.get_dummy_value()

            return out(first, types.StarArgTuple(given)), codegen

        return fn

    return wrap


def same_vec(n_args: int, elems: str = "f32") -> Callable[..., Any]:
    """A rule for `emits_by`: the arguments are n_args Vecs of one type, which the result has too.

    elems: the element types that are allowed.
    """
    allowed = elems.split()

    def rule(*args):
        first = args[0]
        fits = len(args) == n_args and isinstance(first, Vec) and first.elem in allowed
        return first if fits and all(a == first for a in args) else None

    return rule
