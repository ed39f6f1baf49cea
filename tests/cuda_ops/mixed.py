"""Devices of torch for whole models: K and V in its memory, weights computed by `ops`.

In the interpreter a program of a kernel costs some 25 ms, and most of a model's are matrix
products, which have tests of their own. Here those are the CPU's, on the memory of the same
tensors: what differs from a model on the CPU is what is done with K and V.

What is recorded is what a graph of CUDA would have: launches with their grids and arguments, as
they were. A number that was read in Python stays what it was, and operations of torch are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import isfunction
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction

from kvarn.cuda_ops.device import CudaDevice
from kvarn.ops import pointwise
from kvarn.ops.cpu import CPU


class _NoTorch(TorchDispatchMode):
    """Refuses what a graph would do anew: all but views."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        made = function(*args, **(kwargs or {}))
        assert function.is_view or "detach" in str(function), f"recorded: {function}"
        return made


class Launches:
    """Launches, recorded while they are made. `run` makes them again."""

    open: ClassVar[list[Launches]] = []

    def __init__(self) -> None:
        self.calls: list[tuple[str, Callable[[], object]]] = []

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def run(self) -> None:
        for _, call in self.calls:
            call()


def launch(name: str, call: Callable[[], object]) -> None:
    """Make a launch, which is recorded if launches are."""
    for launches in Launches.open:
        launches.calls.append((name, call))
    with torch.utils._python_dispatch._disable_current_modes():
        call()


_run = InterpretedFunction.run


def _launched(self: Any, *args: Any, **kwargs: Any) -> None:
    launch(self.fn.__name__, partial(_run, self, *args, **kwargs))


def array_of(x: Any) -> Any:
    """The array whose memory a tensor is."""
    return x.numpy() if isinstance(x, torch.Tensor) else x


def _on_cpu(name: str) -> Callable[..., None]:
    function = getattr(pointwise, name)

    def call(*args: Any) -> None:
        launch(name, partial(function, *map(array_of, args)))

    return call


class Inputs:
    """Activations of vectors in tensors."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.x = inner, None

    def set(self, x: torch.Tensor) -> Inputs:
        self.x = x
        return self


class RecordingDevice(CudaDevice):
    """Torch's CPU, where what is recorded are launches and what is left is memory as told."""

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__(device or torch.device("cpu"))
        self.recorded: list[Launches] = []
        self.left = (1 << 40, 0)

    def memory_left(self) -> tuple[int, int]:
        return self.left

    def record(self, function: Callable[..., None], *args: Any, **kwargs: Any) -> Launches:
        launches = Launches()
        Launches.open.append(launches)
        InterpretedFunction.run = _launched
        try:
            with _NoTorch():
                function(*args, **kwargs)
        finally:
            InterpretedFunction.run = _run
            Launches.open.remove(launches)
        self.recorded.append(launches)
        return launches


class MixedDevice(RecordingDevice):
    """The weights' part as the CPU computes it."""

    pointwise = SimpleNamespace(
        **{n: _on_cpu(n) for n, f in vars(pointwise).items() if isfunction(f)}
    )

    def weight(self, *args: Any, **kwargs: Any) -> Any:
        return CPU.weight(*args, **kwargs)

    def activations(self, max_rows: int, n_cols: int, *, alone: bool = False) -> Any:
        return Inputs(CPU.activations(max_rows, n_cols))

    def linear_many(self, act: Any, weights: Any, outs: Any) -> None:
        x, arrays = array_of(act.x), [array_of(out) for out in outs]

        def multiply() -> None:
            act.inner.set(x)
            for weight, out in zip(weights, arrays, strict=True):
                CPU.linear(act.inner, weight, out)

        launch("product", multiply)

    def get_rows(self, weight: Any, ids: torch.Tensor, out: torch.Tensor) -> None:
        launch("rows", partial(CPU.get_rows, weight, array_of(ids), array_of(out)))


def greedy(context: Any, prompt: list[int], n: int) -> tuple[list[int], np.ndarray]:
    """n greedy ids after a prompt, and the logits of each."""
    rows, ids = [context.prefill(prompt).copy()], []
    while True:
        ids.append(int(rows[-1].argmax()))
        if len(ids) == n:
            return ids, np.array(rows)
        rows.append(context.decode(ids[-1]).copy())


def forced(context: Any, prompt: list[int], ids: list[int]) -> np.ndarray:
    """The logits after a prompt, and after each of the ids but the last."""
    return np.array([context.prefill(prompt), *(context.decode(i).copy() for i in ids[:-1])])
