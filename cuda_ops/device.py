"""A GPU as a `Device`: torch's memory and the kernels of this room.

On a device of torch that is no GPU ("cpu"), Triton's interpreter runs the same kernels, which is
how they are tested. What differs then is said where it differs: `record` and pinned memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec

import numpy as np
import torch

from ..ops.reference.quants import re_encode_q8_0
from ..ops.types import QUANT_TYPES, QuantType, treatment_of
from . import linear, pointwise
from .errors import CudaOpsError
from .kv import KVOperations
from .linear import Activations, Weight
from .memory import Calls, Graph, PlaceNumbers, Staging, host_tensor, telling, type_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..jit.arena import Arena

    U8 = NDArray[np.uint8]

P = ParamSpec("P")
Q8_0 = QUANT_TYPES["Q8_0"]


class CudaDevice(KVOperations):
    """A device of torch. Arrays are its tensors."""

    name: ClassVar[str] = "cuda"
    chunk: ClassVar[int] = 2048
    least_rows: ClassVar[int] = 1  # more than 8 rows are rounded to f16, few are not
    list_types: ClassVar[tuple[type[np.generic], type[np.generic]]] = np.int32, np.int32

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._staging = Staging(device)

    @property
    def threads(self) -> int:
        """1: what was recorded does not depend on the host's threads."""
        return 1

    def memory(self, shape: tuple[int, ...], dtype: type[np.generic]) -> torch.Tensor:
        with telling(f"allocating {shape} numbers"):
            return torch.empty(shape, dtype=type_of(dtype), device=self.torch)

    def zeros(self, shape: tuple[int, ...], dtype: type[np.generic]) -> torch.Tensor:
        with telling(f"allocating {shape} numbers"):
            return torch.zeros(shape, dtype=type_of(dtype), device=self.torch)

    def put(self, x: NDArray[Any], out: torch.Tensor | None = None) -> torch.Tensor:
        if out is None:
            out = self.memory(x.shape, x.dtype.type)
        out.copy_(host_tensor(x))
        return out

    def get(self, x: torch.Tensor, out: NDArray[Any] | None = None) -> NDArray[Any]:
        if out is None:
            array: NDArray[Any] = x.cpu().numpy()
            return array
        torch.from_numpy(out).copy_(x)
        return out

    def numbers(self, n: int) -> PlaceNumbers:
        return PlaceNumbers(n, self.torch)

    def record(
        self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs
    ) -> Graph | Calls:
        """See `Device.record`. On a GPU the operations run once before they are recorded: what they
        write holds anything until they are run. Elsewhere there are no graphs, and `run` calls
        `function` again."""
        call = partial(function, *args, **kwargs)
        with telling("recording operations"):
            return Graph(call) if self.torch.type == "cuda" else Calls(call)

    def on_host(
        self,
        function: Callable[..., None],
        inputs: Sequence[torch.Tensor],
        out: torch.Tensor,
    ) -> None:
        """See `Device.on_host`: one copy to the host for all of `inputs`, one back."""
        with telling("bringing q, k and v to the host"):
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
        with telling(f"loading {name}"):
            return Weight.prepare(type, host_tensor(stored), n_cols, self.torch, name)

    def activations(self, max_rows: int, n_cols: int) -> Activations:
        return Activations(max_rows, n_cols)

    def linear(self, act: Any, weight: Weight, out: torch.Tensor) -> None:
        self.linear_many(act, (weight,), (out,))

    def linear_many(
        self, act: Any, weights: Sequence[Weight], outs: Sequence[torch.Tensor]
    ) -> None:
        with telling(f"multiplying by {weights[0].name}"):
            linear.linear_many(act, weights, outs)

    def get_rows(self, weight: Weight, ids: torch.Tensor, out: torch.Tensor) -> None:
        linear.get_rows(weight, ids, out)

    @property
    def pointwise(self) -> Any:
        return pointwise
