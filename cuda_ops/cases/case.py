"""Kernels as their wrappers launch them, caught before they are compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from triton.runtime.jit import JITFunction

OLD = ("75", "gfx1100")
"""Targets for which programs keep less in registers, see `is_old`."""
NEW = ("80", "86", "89", "90", "120")


@dataclass(frozen=True)
class Case:
    """A launch of a kernel.

    options     its constants, warps and stages
    per_step    weights (rows, signatures) that a program's pass of its main loop reads; of a kernel
                without a loop, all that a program reads
    may_spill   targets on which the kernel need not fit into registers
    only        targets that launch it so; none: all
    """

    name: str
    kernel: Any
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    per_step: int = 0
    may_spill: tuple[str, ...] = OLD
    only: tuple[str, ...] = ()

    @property
    def warps(self) -> int:
        return int(self.options.get("num_warps", 4))

    @property
    def fuses(self) -> bool:
        """Whether products and sums may be fused."""
        return bool(self.options.get("enable_fp_fusion", True))

    @property
    def key(self) -> str:
        """What the compiled kernel depends on."""
        return f"{self.kernel.fn.__name__} {_told(self.arguments)} {dict(self.options)}"


def _told(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(map(_told, x))
    return str(x.dtype) if isinstance(x, torch.Tensor) else x


@contextmanager
def _caught(label: str) -> Iterator[list[Case]]:
    """The launches that are made in the block, none of which runs."""
    cases: list[Case] = []

    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        name = kernel.fn.__name__.removesuffix("_kernel")
        cases.append(Case(f"{name}, {label}", kernel, arguments, options))

    original = JITFunction.run
    JITFunction.run = run
    try:
        yield cases
    finally:
        JITFunction.run = original


def cases_of(
    label: str,
    call: Callable[[bool], object],
    *,
    per_step: Mapping[str, int] | None = None,
    may_spill: tuple[str, ...] = OLD,
) -> list[Case]:
    """The launches of an operation; call(old) makes them for old GPUs or others.

    per_step: by the names of kernels.
    """
    with _caught(label) as new:
        call(False)
    with _caught(f"{label}, old") as old:
        call(True)
    cases = []
    for case_new, case_old in zip(new, old, strict=True):
        alike = case_new.key == case_old.key
        launches = [(case_new, ())] if alike else [(case_new, NEW), (case_old, OLD)]
        for case, only in launches:
            steps = (per_step or {}).get(case.name.partition(",")[0], 0)
            cases.append(replace(case, per_step=steps, may_spill=may_spill, only=only))
    return cases
