"""How kernels read a quantised format: one table entry per type.

A weight is `w = d * q + low` with small integers q (codes). Formats with blocks of 32 weights have
one `d` and one `low` per block; formats with blocks of 256 have one `d` and `low` per block and
small integers per 16 weights beside them: `w = d * scale * q + low * minimum`.

An emitter turns a block at an address into vectors. Codes are <32 x i8>, in the order of the
weights. They are unsigned where the format allows it (`signed=False`, at most `top`), because the
integer dot products of x86 multiply unsigned by signed bytes. Such codes exceed the weights' by the
`centre` (8 for Q4_0): products subtract it times the sum of the activations. A new type is one
entry and its emitters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ....jit.simd import const
from ...types import QUANT_TYPES
from .pieces import Blocks, Builder, Value


@dataclass(frozen=True)
class Format:
    """One entry of the table; emitters take a builder and a byte pointer."""

    type_name: str
    top: int  # largest |code|
    signed: bool
    # block / 32 vectors <32 x i8>, each emitted on demand, so that few occupy registers
    codes: Callable[[Builder, Value], Iterable[Value]]
    # n blocks at once -> <n x float> d and low (None: see `centre`)
    floats: Callable[[Builder, Blocks], tuple[Value, Value | None]]
    # blocks of 256: <16 x i16> scales and minima (None: none), one per 16 weights
    scales: Callable[[Builder, Value], tuple[Value, Value | None]] | None = None
    grain: int = 32  # weights that share a scale
    # scales and minima of formats that store bytes: <16 x i8>, eight of each
    scale_bytes: Callable[[Builder, Value], Value] | None = None
    # the codes as <64 x i8>, for registers of that size
    pairs: Callable[[Builder, Value], Iterable[Value]] | None = None
    centre: int = 0  # low = -centre * d

    @property
    def block(self) -> int:
        """Weights per block: 32 or 256."""
        return QUANT_TYPES[self.type_name].block

    @property
    def n_bytes(self) -> int:
        """Bytes of a block."""
        return QUANT_TYPES[self.type_name].n_bytes

    def d_and_low(self, b: Builder, blocks: Blocks) -> tuple[Value, Value | None]:
        """<n x float> d and low (None: always 0) of n blocks."""
        d, low = self.floats(b, blocks)
        return d, b.fmul(d, const(d.type, -self.centre)) if self.centre else low
