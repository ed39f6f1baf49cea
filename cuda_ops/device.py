"""A GPU as a `Device`: torch's memory and the kernels of this room.

On a device of torch that is no GPU ("cpu"), Triton's interpreter runs the same kernels, which is
how they are tested. What differs then is said where it differs: `record` and pinned memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec

import numpy as np
import torch

from ..ops.attention.layout import SEGMENT, TileLayout, n_segments
from ..ops.attention.softmax import Softmax
from ..ops.device import Device, KVDevice
from ..ops.reference.attention import read_kv
from ..ops.reference.quants import re_encode_q8_0
from ..ops.types import QUANT_TYPES, QuantType
from . import append, linear, pointwise
from .attention import ChunkScratch, TokenScratch, chunk_attention, token_attention
from .attention import gathered_attention as gathered
from .attention.tiles import check_served
from .attention.token import is_old
from .errors import CudaOpsError
from .linear import Activations, Weight
from .linear.linear import MAX_TOKENS
from .memory import (
    Calls,
    Graph,
    PlaceNumbers,
    PlannedBytes,
    Staging,
    host_tensor,
    in_memory,
    telling,
    type_of,
)
from .select import operations
from .select.hash import encoders_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..jit.arena import Arena

    F32 = NDArray[np.float32]
    U8 = NDArray[np.uint8]

P = ParamSpec("P")
Q8_0 = QUANT_TYPES["Q8_0"]


class AttentionScratch:
    """Memory for attention of up to `max_rows` new tokens to all, or a window, of n_ctx."""

    def __init__(
        self,
        n_heads: int,
        n_kv_heads: int,
        layout: TileLayout,
        max_rows: int,
        n_ctx: int,
        device: torch.device,
        old: bool,
    ) -> None:
        shape = n_heads, n_kv_heads, layout, n_segments(n_ctx) * SEGMENT, device, old
        self.token = TokenScratch(*shape)
        self.chunk = ChunkScratch(*shape) if max_rows > MAX_TOKENS else None


class CudaDevice(KVDevice):
    """A device of torch. Arrays are its tensors, and so are the places of a layer."""

    name: ClassVar[str] = "cuda"
    chunk: ClassVar[int] = 2048
    least_rows: ClassVar[int] = 1  # more than 8 rows are rounded to f16, few are not
    list_types: ClassVar[tuple[type[np.generic], type[np.generic]]] = np.int32, np.int32

    def __init__(self, device: torch.device) -> None:
        self.torch, self._old = device, is_old(device)
        self._select = operations(device, self._old)
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
        if type.treatment == "re-encoded":
            if n_cols % Q8_0.block:
                raise CudaOpsError(
                    f"preparing weights {name}: found rows of {n_cols} {type.name}, expected a "
                    f"multiple of {Q8_0.block} to re-encode them as Q8_0"
                )
            type, stored = Q8_0, re_encode_q8_0(type, data, n_cols)
        with telling(f"loading {name}"):
            return Weight.prepare(type, host_tensor(stored), n_cols, self.torch, name)

    def activations(self, max_rows: int, n_cols: int, *, alone: bool = False) -> Activations:
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

    @property
    def recurrent(self) -> Any:
        """See `Device.recurrent`: none yet."""
        raise CudaOpsError(
            "recurrent layers (delta rule, scan, short convolution) have no kernels for GPUs: "
            "run the model with --device cpu"
        )

    # K and V, and columns: places of a layer are one tensor, uint8 (segments, bytes of a segment).

    def memory_left(self) -> tuple[int, int]:
        """See `KVDevice`. What torch holds for later allocations is free."""
        if self.torch.type != "cuda":
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 0
        allocated = torch.cuda.memory_allocated(self.torch)
        free, _ = torch.cuda.mem_get_info(self.torch)
        return free + torch.cuda.memory_reserved(self.torch) - allocated, allocated

    def planned_bytes(self, make: Callable[[Device], object]) -> int:
        """See `KVDevice`: made of torch's tensors without memory."""
        with PlannedBytes() as planned:
            planned_context = make(type(self)(torch.device("meta")))
            n_bytes = planned.held()
        del planned_context
        return n_bytes

    def check_served(self, layout: TileLayout) -> None:
        """See `KVDevice`."""
        check_served(layout)

    def append_kv(
        self, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor, layout: TileLayout, start: int
    ) -> None:
        append.append_kv(k, v, places, layout, in_memory(self.torch, start))

    def attention_scratch(
        self, n_heads: int, n_kv_heads: int, layout: TileLayout, max_rows: int, n_ctx: int
    ) -> AttentionScratch:
        with telling(f"allocating what attention to {n_ctx:,} tokens needs"):
            return AttentionScratch(
                n_heads, n_kv_heads, layout, max_rows, n_ctx, self.torch, self._old
            )

    @property
    def attention(self) -> Callable[..., None]:
        return self._attention

    @property
    def attention_rows(self) -> Callable[..., None]:
        return self._attention

    def _attention(
        self,
        q: torch.Tensor,
        places: torch.Tensor,
        start: int,
        out: torch.Tensor,
        *,
        scratch: AttentionScratch,
        softmax: Softmax,
        window: int | None = None,
    ) -> None:
        """`ops.attention.api.attention` and `attention_rows`. Up to MAX_TOKENS rows have the bits
        of single tokens, of a prompt too; those of more are read as f16."""
        _check_no_sinks(softmax)
        options: dict[str, Any] = {"softmax": softmax, "window": window}
        with telling(f"attention of {len(q)} tokens"):
            if 1 < len(q) <= MAX_TOKENS or scratch.chunk is None:
                for i in range(len(q)):
                    row, place = slice(i, i + 1), in_memory(self.torch, start + i)
                    token_attention(
                        q[row], places, place, out[row], scratch=scratch.token, **options
                    )
            elif len(q) == 1:
                place = in_memory(self.torch, start)
                token_attention(q, places, place, out, scratch=scratch.token, **options)
            else:
                chunk_attention(q, places, start, out, scratch=scratch.chunk, **options)

    def gathered_scratch(
        self, n_heads: int, n_kv_heads: int, layout: TileLayout, room: int
    ) -> TokenScratch:
        return TokenScratch(n_heads, n_kv_heads, layout, room, self.torch, self._old)

    @property
    def gathered_attention(self) -> Callable[..., None]:
        return self._gathered

    def _gathered(self, *args: Any, softmax: Softmax, **options: Any) -> None:
        _check_no_sinks(softmax)
        gathered(*args, softmax=softmax, **options)

    @property
    def select(self) -> SimpleNamespace:
        return self._select

    def networks(
        self, layers: Mapping[int, Any], n_heads: int, n_kv_heads: int, layout: TileLayout
    ) -> Mapping[int, Any]:
        return encoders_of(layers, n_heads, n_kv_heads, layout, self.torch)

    def read_kv(
        self, places: torch.Tensor, layout: TileLayout, n_kv_heads: int, start: int, stop: int
    ) -> tuple[F32, F32]:
        first, last = start // SEGMENT, n_segments(stop)
        near = places[first:last].cpu().numpy()
        addresses = np.zeros(last, np.int64)
        addresses[first:] = near.ctypes.data + near.shape[1] * np.arange(len(near))
        return read_kv(addresses, layout, n_kv_heads, start, stop)

    def read_items(self, places: torch.Tensor, n_kv_heads: int, item_bytes: int) -> U8:
        items = places.cpu().numpy().reshape(len(places), n_kv_heads, SEGMENT, item_bytes)
        return items.swapaxes(0, 1).reshape(n_kv_heads, -1, item_bytes)

    def write_items(self, places: torch.Tensor, items: U8) -> None:
        n_kv_heads, _, item_bytes = items.shape
        apart = items.reshape(n_kv_heads, len(places), SEGMENT, item_bytes).swapaxes(0, 1)
        places.copy_(host_tensor(np.ascontiguousarray(apart).reshape(len(places), -1)))


def _check_no_sinks(softmax: Softmax) -> None:
    """`CudaOpsError` for sinks, which have no kernels."""
    if softmax.sinks is not None:
        raise CudaOpsError("attention sinks have no kernels for GPUs: use --kv-on host")
