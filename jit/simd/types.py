"""Vector values that live in registers: `Vec` is a Numba type that LLVM represents as `<n x elem>`.

A kernel uses a Vec like a number (`acc = fma(a, b, acc)`, `x ^ y`, `w >> 4`); LLVM keeps it in
registers and lowers it to what the CPU has (one zmm, two ymm, four NEON registers).  `Tile` is
several vectors in one value, an LLVM array that is taken apart into registers.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

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
    """`n` elements of type `elem` ("i8" … "f32"); equal when both are equal."""

    def __init__(self, elem: str, n: int) -> None:
        self.elem, self.n = elem, n
        super().__init__(name=f"{elem}x{n}")

    @property
    def ir(self) -> ir.VectorType:
        """The LLVM type."""
        return vty(ELEM[self.elem], self.n)


class Tile(types.Type):
    """`n` vectors of `lanes` elements in one value: `panels` vectors for each of `tokens`.

    Vector `t * panels + p` belongs to token t and panel p, which is the kernels' convention.
    """

    def __init__(self, elem: str, n: int, panels: int = 1, lanes: int = 16) -> None:
        self.elem, self.n, self.panels, self.tokens, self.lanes = (
            elem,
            n,
            panels,
            n // panels,
            lanes,
        )
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
i16x8, i16x16, i16x32 = (Vec("i16", n) for n in (8, 16, 32))
i32x4, i32x8, i32x16 = (Vec("i32", n) for n in (4, 8, 16))
i64x4, i64x8 = (Vec("i64", n) for n in (4, 8))
f16x8, f16x16 = (Vec("f16", n) for n in (8, 16))
f32x4, f32x8, f32x16 = (Vec("f32", n) for n in (4, 8, 16))


def vty(elem: ir.Type, n: int) -> ir.VectorType:
    """LLVM's `<n x elem>`."""
    return ir.VectorType(elem, n)


def const(ty: ir.Type, value: Any) -> ir.Constant:
    """A constant; the same value in every lane if `ty` is a vector."""
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
    """How LLVM's overloaded intrinsics spell a type: `v16f32`, `i32`."""
    if isinstance(ty, ir.VectorType):
        return f"v{ty.count}{suffix(ty.element)}"
    return {ir.HalfType(): "f16", ir.FloatType(): "f32"}.get(ty) or f"i{ty.width}"


def splat(b: ir.IRBuilder, x: ir.Value, n: int) -> ir.Value:
    """`x` in every one of n lanes."""
    v = b.insert_element(ir.Constant(vty(x.type, n), ir.Undefined), x, ir.Constant(I32, 0))
    return b.shuffle_vector(v, v, const(vty(I32, n), 0))


def shuffle(
    b: ir.IRBuilder, v: ir.Value, lanes: Iterable[int], w: ir.Value | None = None
) -> ir.Value:
    """The lanes of `v` (and, counted after them, of `w`) in another order."""
    order = list(lanes)
    return b.shuffle_vector(v, w or v, ir.Constant(vty(I32, len(order)), order))


def emits(ret: Any, *want: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: `f(builder, *ir_values)` -> a function kernels can call.

    `want` are the argument types; arguments are cast to them (an integer literal to int8, say).
    For `ret` types.void, `f` returns nothing.
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
    """Like `emits`, for several vector types: `rule(*argument types)` gives the result's type.

    A rule returns None for types that do not fit, which the kernel's author sees as a typing error.
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


def same_vec(n_args: int, elems: str = "f32") -> Callable[..., Any]:
    """A rule for `emits_by`: n_args equal Vecs of one of the element types give the same Vec."""
    allowed = elems.split()

    def rule(*args):
        first = args[0]
        fits = len(args) == n_args and isinstance(first, Vec) and first.elem in allowed
        return first if fits and all(a == first for a in args) else None

    return rule
