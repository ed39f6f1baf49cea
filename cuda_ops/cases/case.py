"""What is known of a kernel before it is launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A kernel as it is launched: types of its arguments, constants, warps of a program.

    types       argument → type, or a tuple of types: `*fp32`, `i32`; pointers lie on 16 bytes
    also_16     integers that are multiples of 16, as most are
    per_step    weights (rows, signatures) that a program's pass of its main loop reads; of a kernel
                without a loop, all that a program reads
    may_spill   targets on which the kernel need not fit into registers
    stages      of loops that are pipelined; 0: as many as Triton chooses for the target
    fuses       whether products and sums may be fused
    only        targets that launch it so; none: all
    """

    name: str
    kernel: Any
    types: Mapping[str, Any]
    constants: Mapping[str, Any]
    warps: int = 4
    also_16: tuple[str, ...] = ()
    per_step: int = 0
    may_spill: tuple[str, ...] = field(default=("75", "gfx1100"))
    stages: int = 0
    fuses: bool = True
    only: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """What the kernel is launched with, beside its arguments."""
        options = {"num_warps": self.warps, "enable_fp_fusion": self.fuses}
        return options | ({"num_stages": self.stages} if self.stages else {})


def types_of(text: str) -> dict[str, str]:
    """`x:*fp32 n:i32` as a dictionary."""
    return dict(part.split(":") for part in text.split())
