"""A Numba type for several vectors at once: LLVM keeps each of them in registers."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import models, register_model

from ..simd import ELEM, vty


class Registers(types.Type):
    """A tuple of vectors, described by (element, lanes) each: the sums a kernel carries along."""

    def __init__(self, *parts: tuple[str, int]) -> None:
        self.parts = parts
        super().__init__(name="registers_" + "_".join(f"{e}x{n}" for e, n in parts))


@register_model(Registers)
class _RegistersModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        vectors = [vty(ELEM[elem], n) for elem, n in fe_type.parts]
        super().__init__(dmm, fe_type, ir.LiteralStructType(vectors))


def unpack(b, value):
    """The vectors of a struct value, as a list."""
    return [b.extract_value(value, i) for i in range(len(value.type.elements))]


def pack(b, ty, vectors):
    """The struct value of the vectors."""
    out = ir.Constant(ty, ir.Undefined)
    for i, vector in enumerate(vectors):
        out = b.insert_value(out, vector, i)
    return out
