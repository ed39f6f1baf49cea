"""The types that kernels read, one entry each: how a row is laid out on the GPU.

    w = d scale (q - centre) - m minimum            table types: w = d scale table[q]

A file's blocks put scales between codes, where no 16 bytes can be loaded at once. So every type is
taken apart into **planes**, each a matrix of its own with the weights' rows:

    codes   fields of `widths[0]` bits: 16 bytes hold 128 / width codes, so that field f of word j
            is element 4 f + j. Four neighbours of x then meet four words: one load of 16 bytes each
    more    the same of the codes' higher bits, `widths[1]` of them (Q5_*, Q6_K, Q3_K)
    small   one or two bytes for `grain` weights: integer scale, minimum
    heads   one or two f16 for `block` weights: d, m (MXFP4: one byte, an exponent)

Floats stay as they are. Rows are padded to a whole number of steps: the weights that a thread reads
before it goes on, at least 16 bytes of each plane of codes. Padding has code 0 and scale 0.
"""

from __future__ import annotations

from dataclasses import dataclass

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MXFP4 = tuple(2.0 * v for v in E2M1) + tuple(-2.0 * v for v in E2M1)
"""Twice the values of e2m1, as in `ops.reference.quants`: the scale is halved."""


@dataclass(frozen=True)
class Format:
    """What kernels have to know of a type; `small` and `heads` name the cases of `unpack`."""

    name: str
    widths: tuple[int, ...]
    step: int
    grain: int
    block: int
    centre: int = 0
    small: str = ""
    heads: str = "d"
    table: tuple[float, ...] = ()

    @property
    def is_float(self) -> bool:
        return self.widths[0] >= 16

    @property
    def lanes(self) -> int:
        """Neighbours that are read at once: 16 bytes of floats, or four words of codes."""
        return 16 // (self.widths[0] // 8) if self.is_float else 4

    @property
    def high(self) -> int:
        """Bits of a code in the plane `more`."""
        return self.widths[1] if len(self.widths) == 2 else 0

    @property
    def has_table(self) -> bool:
        return bool(self.table)

    @property
    def has_minimum(self) -> bool:
        return self.heads == "dm"

    def row_bytes(self, n_cols: int) -> int:
        """Bytes of one row in all planes."""
        padded = -(-n_cols // self.step) * self.step
        small = {"": 0, "i8": 1, "nibbles": 1, "bytes": 2}[self.small]
        heads = 0 if self.is_float else {"d": 2, "dm": 4, "e8m0": 1}[self.heads]
        return (
            padded * sum(self.widths) // 8
            + padded // self.grain * small
            + -(-padded // self.block) * heads
        )


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("F32", (32,), 32, 32, 32),
        Format("F16", (16,), 32, 32, 32),
        Format("BF16", (16,), 32, 32, 32),
        Format("Q8_0", (8,), 32, 32, 32, 128),
        Format("Q4_0", (4,), 32, 32, 32, 8),
        Format("Q4_1", (4,), 32, 32, 32, heads="dm"),
        Format("Q5_0", (4, 1), 128, 32, 32, 16),
        Format("Q5_1", (4, 1), 128, 32, 32, heads="dm"),
        Format("IQ4_NL", (4,), 32, 32, 32, table=IQ4),
        Format("MXFP4", (4,), 32, 32, 32, heads="e8m0", table=MXFP4),
        Format("Q2_K", (2,), 64, 16, 256, small="nibbles", heads="dm"),
        Format("Q3_K", (2, 1), 128, 16, 256, 4, small="i8"),
        Format("Q4_K", (4,), 32, 32, 256, small="bytes", heads="dm"),
        Format("Q5_K", (4, 1), 128, 32, 256, small="bytes", heads="dm"),
        Format("Q6_K", (4, 2), 64, 16, 256, 32, small="i8"),
        Format("IQ4_XS", (4,), 32, 32, 256, small="i8", table=IQ4),
    )
}
