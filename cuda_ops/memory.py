"""What a GPU's memory is for the engine: arrays, numbers, graphs, and copies over the bus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ..system.errors import OutOfDeviceMemory
from .errors import CudaOpsError

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        host, at, parts = self._near.numpy(), 0, []
        for x in arrays:
            parts.append(host[at : at + x.numel()].reshape(tuple(x.shape)))
            at += x.numel()
        return [*parts, host[n : n + room]]

    def to_device(self, n: int, out: torch.Tensor) -> None:
        """Copy the numbers behind the first `n` to `out`; the next `to_host` waits for it."""
        out.copy_(self._near[n : n + out.numel()].view(out.shape), non_blocking=True)

    def _reserve(self, n: int) -> None:
        if self._near.numel() < n:
            self._far = torch.empty(n, device=self._device)
            self._near = torch.empty(n, pin_memory=self._device.type == "cuda")


@contextmanager
def telling(doing: str) -> Iterator[None]:
    """`OutOfDeviceMemory` where the block needs memory that the GPU has not."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfDeviceMemory(
            f"{doing}: the GPU's memory is full ({str(error).partition('. ')[0]}): end other "
            "programs that use it, or take a smaller model, --kv-on host or --device cpu"
        ) from error


class Place(int):
    """A number of the host by which operations find it in the GPU's memory: int32, at `i`."""

    numbers: torch.Tensor
    i: int


class PlaceNumbers:
    """Numbers in the GPU's memory, which kernels read when they run; see `ops.device.Numbers`."""

    def __init__(self, n: int, device: torch.device) -> None:
        self._tensor = torch.zeros(n, dtype=torch.int32, device=device)
        self._values: Sequence[int] = [0] * n

    def set(self, values: Sequence[int]) -> None:
        """See `Numbers`."""
        self._values = values
        # What is being copied does not wait for what the GPU does.
        self._tensor.copy_(torch.tensor(values, dtype=torch.int32), non_blocking=True)

    def now(self) -> list[int]:
        """See `Numbers`."""
        places: list[int] = []
        for i, value in enumerate(self._values):
            place = Place(value)
            place.numbers, place.i = self._tensor, i
            places.append(place)
        return places


def in_memory(device: torch.device, *numbers: int) -> torch.Tensor:
    """Where kernels read numbers, int32 (n,): a new place, unless they have one, side by side."""
    first = numbers[0]
    if isinstance(first, Place):
        return first.numbers[first.i : first.i + len(numbers)]
    return torch.tensor(numbers, dtype=torch.int32).to(device, non_blocking=True)


def type_of(dtype: type[np.generic]) -> torch.dtype:
    """torch's name of a type of NumPy."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def host_tensor(x: NDArray[Any]) -> torch.Tensor:
    """`x` as a tensor of the host. What cannot be written, as a mapped file, is copied: torch
    has no tensors of that kind."""
    return torch.from_numpy(np.ascontiguousarray(x) if x.flags.writeable else np.array(x))


class PlannedBytes(TorchDispatchMode):
    """Counts what is made of torch's "meta" tensors, which have sizes and no memory."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device.type == "meta":
            storage = result.untyped_storage()
            if storage._cdata not in self._seen:
                self._seen[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return result

    def held(self) -> int:
        """Bytes of those that are still there."""
        return sum(n for storage, n in self._seen.values() if not storage.expired())


def check_place(name: str, place: torch.Tensor, n: int) -> None:
    """Raise CudaOpsError unless place is int32 (n,): numbers that kernels read on the GPU."""
    if place.dtype != torch.int32 or place.shape != (n,):
        raise CudaOpsError(
            f"{name} is {place.dtype} {tuple(place.shape)}, expected int32 ({n},) on the GPU"
        )


def check_floats(name: str, x: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise CudaOpsError unless x is contiguous float32 of this shape."""
    if x.dtype != torch.float32 or tuple(x.shape) != shape or not x.is_contiguous():
        gaps = "" if x.is_contiguous() else ", not contiguous"
        raise CudaOpsError(
            f"{name} is {x.dtype} {tuple(x.shape)}{gaps}, expected contiguous float32 {shape}"
        )
