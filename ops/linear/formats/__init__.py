"""The quantised formats that kernels read: a table with one entry per type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ....jit.simd import VARIANT, const, emits_for
from .blocks_of_32 import BLOCKS_OF_32
from .blocks_of_256 import BLOCKS_OF_256
from .format import Format as Format
from .pieces import Builder, Value


def biased(f: Format) -> Format:
    """The format with 128 added to its signed codes, for dot products of unsigned bytes."""
    if not f.signed:
        return f
    inner: Any = f.scales

    def codes(b: Builder, p: Value) -> Iterable[Value]:
        return (b.xor(q, const(q.type, -128)) for q in f.codes(b, p))

    def scales(b: Builder, p: Value) -> tuple[Value, Value | None]:
        scale, _ = inner(b, p)
        return scale, scale

    both = scales if inner else None
    return replace(f, top=255, signed=False, codes=codes, scales=both, centre=128)


# Kernels are compiled for a kind: the number of an entry. AVX-512's dot products take any unsigned
# byte, so there signed codes get an offset.
FORMATS: tuple[Format, ...] = tuple(
    biased(f) if VARIANT == "avx512" else f for f in (*BLOCKS_OF_32, *BLOCKS_OF_256)
)
KINDS: dict[str, int] = {f.type_name: kind for kind, f in enumerate(FORMATS)}


def formatted(returns: Any = None) -> Any:
    """Decorator: make `f(b, format, *values)` a function that kernels call with a kind and values.

    returns: from a Format to the Numba type of the result; without it `f` returns nothing.
    """
    return emits_for(lambda kind: FORMATS[kind.literal_value], returns)
