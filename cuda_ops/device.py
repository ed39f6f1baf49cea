"""A GPU as a `Device`: torch's memory and the kernels of this room; K and V stay on the host.

On a device of torch that is no GPU ("cpu"), Triton's interpreter runs the same kernels, which is
how they are tested. What differs then is said where it differs: `record` and pinned memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, ParamSpec

import numpy as np
import torch

from ..ops.device import Device
from ..ops.reference.quants import re_encode_q8_0
from ..ops.types import QUANT_TYPES, QuantType, treatment_of
from ..system.errors import OutOfDeviceMemory
from . import linear, pointwise
from .errors import CudaOpsError
from .linear import Activations, Weight

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..jit.arena import Arena

    U8 = NDArray[np.uint8]

P = ParamSpec("P")
Q8_0 = QUANT_TYPES["Q8_0"]


class Graph:
    """Recorded operations as a `torch.cuda.CUDAGraph`: one launch for all of them."""

    def __init__(self, function: Callable[[], None]) -> None:
        # What Triton compiles and loads, and what is allocated once, cannot be done while a graph
        # is captured: the first call is an ordinary one.
        function()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile: the file's reader, a program's own.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            function()

    def run(self) -> None:
        """See `ops.device.Recorded`."""
        self._graph.replay()


class Calls:
    """Recorded operations where torch has no graphs: the calls, made again."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.run = function


class Staging:
    """Memory on both sides of the bus for arrays that cross it together; grows, never shrinks.

    On a GPU the host's side is pinned: a copy then needs no other on the way.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._near = self._far = torch.empty(0)

    def to_host(self, arrays: Sequence[torch.Tensor], room: int) -> list[NDArray[np.float32]]:
        """The arrays, float32, in the host's memory after one copy, and behind them `room` numbers.

        Valid until the next call.
        """
        n = sum(x.numel() for x in arrays)
        self._reserve(n + room)
        torch.cat([x.reshape(-1) for x in arrays], out=self._far[:n])
        self._near[:n].copy_(self._far[:n])  # waits for the GPU
        host, at, found = self._near.numpy(), 0, []
        for x in arrays:
            found.append(host[at : at + x.numel()].reshape(tuple(x.shape)))
            at += x.numel()
        return [*found, host[n : n + room]]

    def to_device(self, n: int, out: torch.Tensor) -> None:
        """Copy the numbers behind the first `n` to `out`; the next `to_host` waits for it."""
        out.copy_(self._near[n : n + out.numel()].view(out.shape), non_blocking=True)

    def _reserve(self, n: int) -> None:
        if self._near.numel() < n:
            self._far = torch.empty(n, device=self._device)
            self._near = torch.empty(n, pin_memory=self._device.type == "cuda")


@contextmanager
def _telling(doing: str) -> Iterator[None]:
    """`OutOfDeviceMemory` where the block needs memory that the GPU has not."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfDeviceMemory(
            f"{doing}: the GPU's memory is full ({str(error).partition('. ')[0]}): end other "
            "programs that use it, or take a smaller model or --device cpu"
        ) from error


class CudaDevice(Device):
    """A device of torch. Arrays are its tensors. K and V are not: stores are on the CPU.

    chunk: the CPU's, since stores, encoders and evicting methods work on these chunks there; what
    they keep then does not depend on where the model computes.
    """

    name: ClassVar[str] = "cuda"
    chunk: ClassVar[int] = 512

    def __init__(self, device: torch.device) -> None:
        self.torch = device
        self._staging = Staging(device)

    @property
    def threads(self) -> int:
        """1: what was recorded does not depend on the host's threads."""
        return 1

    def memory(self, shape: tuple[int, ...], dtype: type[np.generic]) -> torch.Tensor:
        with _telling(f"allocating {shape} numbers"):
            return torch.empty(shape, dtype=_type_of(dtype), device=self.torch)

    def put(self, x: NDArray[Any], out: torch.Tensor | None = None) -> torch.Tensor:
        if out is None:
            out = self.memory(x.shape, x.dtype.type)
        out.copy_(_tensor(x))
        return out

    def get(self, x: torch.Tensor) -> NDArray[Any]:
        array: NDArray[Any] = x.cpu().numpy()
        return array

    def number(self) -> NoReturn:
        _not_here("number")

    def record(
        self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs
    ) -> Graph | Calls:
        """See `Device.record`. On a GPU the operations run once before they are recorded: what they
        write holds anything until they are run. Elsewhere there are no graphs, and `run` calls
        `function` again."""
        call = partial(function, *args, **kwargs)
        with _telling("recording operations"):
            return Graph(call) if self.torch.type == "cuda" else Calls(call)

    def on_host(
        self,
        function: Callable[..., None],
        inputs: Sequence[torch.Tensor],
        out: torch.Tensor,
    ) -> None:
        """See `Device.on_host`: one copy to the host for all of `inputs`, one back."""
        with _telling("bringing q, k and v to the host"):
            *arrays, room = self._staging.to_host(inputs, out.numel())
        function(*arrays, room.reshape(tuple(out.shape)))
        self._staging.to_device(sum(x.numel() for x in inputs), out)

    def weight(
        self, type: QuantType, data: U8, n_cols: int, name: str = "", arena: Arena | None = None
    ) -> Weight:
        """See `Device.weight`. Types without kernels are re-encoded as Q8_0, as on the CPU."""
        stored = data
        if treatment_of(type) == "re-encoded":
            if n_cols % Q8_0.block:
                raise CudaOpsError(
                    f"preparing weights {name}: found rows of {n_cols} {type.name}, expected a "
                    f"multiple of {Q8_0.block} to re-encode them as Q8_0"
                )
            type, stored = Q8_0, re_encode_q8_0(type, data, n_cols)
        with _telling(f"loading {name}"):
            return Weight.prepare(type, _tensor(stored), n_cols, self.torch, name)

    def activations(self, max_rows: int, n_cols: int) -> Activations:
        return Activations(max_rows, n_cols)

    def linear(self, act: Any, weight: Weight, out: torch.Tensor) -> None:
        self.linear_many(act, (weight,), (out,))

    def linear_many(
        self, act: Any, weights: Sequence[Weight], outs: Sequence[torch.Tensor]
    ) -> None:
        with _telling(f"multiplying by {weights[0].name}"):
            linear.linear_many(act, weights, outs)

    def get_rows(self, weight: Weight, ids: torch.Tensor, out: torch.Tensor) -> None:
        linear.get_rows(weight, ids, out)

    @property
    def pointwise(self) -> Any:
        return pointwise

    # What only the device of a store does: stores are on the CPU.

    def append_kv(self, *_: Any) -> NoReturn:
        _not_here("append_kv")

    def attention_scratch(self, *_: Any) -> NoReturn:
        _not_here("attention_scratch")

    @property
    def attention(self) -> NoReturn:
        _not_here("attention")

    def gathered_scratch(self, *_: Any) -> NoReturn:
        _not_here("gathered_scratch")

    @property
    def gathered_attention(self) -> NoReturn:
        _not_here("gathered_attention")

    @property
    def select(self) -> NoReturn:
        _not_here("select")

    def of_heads(self, *_: Any) -> NoReturn:
        _not_here("of_heads")

    def read_kv(self, *_: Any) -> NoReturn:
        _not_here("read_kv")

    def read_items(self, *_: Any) -> NoReturn:
        _not_here("read_items")

    def write_items(self, *_: Any) -> NoReturn:
        _not_here("write_items")


def _not_here(operation: str) -> NoReturn:
    raise CudaOpsError(
        f"{operation} on a GPU: K and V are in the host's memory, and the CPU computes on them"
    )


def _type_of(dtype: type[np.generic]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _tensor(x: NDArray[Any]) -> torch.Tensor:
    """`x` as a tensor of the host. What cannot be written, as a mapped file, is copied: torch
    has no tensors of that kind."""
    return torch.from_numpy(np.ascontiguousarray(x) if x.flags.writeable else np.array(x))
