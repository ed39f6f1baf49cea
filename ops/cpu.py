"""The CPU as a `Device`: NumPy arrays, and the kernels of this room. Loads them on first use."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec

import numpy as np

from ..jit.arena import aligned
from .attention.layout import SEGMENT, TileLayout
from .device import Device
from .experts import ExpertMatrix
from .reference.attention import read_kv
from .types import QuantType

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

    from ..jit.arena import Arena
    from ..jit.launch import Graph
    from .attention.api import AttentionScratch
    from .attention.decode.gathered import GatheredScratch
    from .attention.texts.api import TextScratch
    from .experts import Routing
    from .experts.api import ExpertsScratch
    from .linear import Activations, Weight
    from .low_rank import LowRank, LowRankScratch

    F32 = NDArray[np.float32]
    I32 = NDArray[np.int32]
    I64 = NDArray[np.int64]
    U8 = NDArray[np.uint8]

P = ParamSpec("P")


class CellNumbers:
    """Numbers in memory, which kernels read by their `Cell`s."""

    def __init__(self, n: int) -> None:
        from ..jit.launch import Cell

        self._memory, self._cell = np.zeros(n, np.int64), Cell.at

    def set(self, values: Sequence[int]) -> None:
        """See `device.Numbers`."""
        self._memory[:] = values

    def now(self) -> list[int]:
        """See `device.Numbers`."""
        return [self._cell(self._memory, i) for i in range(len(self._memory))]


class Cpu(Device):
    """The CPU that this process runs on. Places are addresses, int64 (segments,)."""

    name: ClassVar[str] = "cpu"
    chunk: ClassVar[int] = 512
    least_rows: ClassVar[int] = 8  # products of up to 4 rows have kernels of their own
    list_types: ClassVar[tuple[type[np.generic], type[np.generic]]] = np.uint32, np.int64

    @property
    def threads(self) -> int:
        from ..jit.threads import n_threads

        return n_threads()

    def memory(self, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
        array: NDArray[Any] = aligned(shape, dtype)
        return array

    def zeros(self, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
        array = self.memory(shape, dtype)
        array.fill(0)
        return array

    def put(self, x: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        if out is None:
            return x
        out[:] = x
        return out

    def get(self, x: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        if out is None:
            return x
        out[:] = x
        return out

    def numbers(self, n: int) -> CellNumbers:
        return CellNumbers(n)

    def tell_time(self, times: I64, i: int) -> None:
        self._tell_time(int(times.ctypes.data) + 8 * i)

    def record(self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> Graph:
        from ..jit.launch import record

        return record(function, *args, **kwargs)

    def on_host(
        self, function: Callable[..., None], inputs: Sequence[NDArray[Any]], out: NDArray[Any]
    ) -> None:
        function(*inputs, out)

    def weight(
        self, type: QuantType, data: U8, n_cols: int, name: str = "", arena: Arena | None = None
    ) -> Weight:
        return self._linear.Weight.prepare(type, data, n_cols, name, arena)

    def activations(self, max_rows: int, n_cols: int, *, alone: bool = False) -> Activations:
        return self._linear.Activations(max_rows, n_cols, alone=alone)

    def linear(self, act: Any, weight: Weight, out: F32) -> None:
        self._linear.linear(act, weight, out)

    def get_rows(self, weight: Weight, ids: I32, out: F32) -> None:
        self._linear.get_rows(weight, ids, out)

    def low_rank(self, a: F32, b: F32) -> LowRank:
        return self._low_rank.LowRank.prepare(a, b)

    def low_rank_scratch(self, max_rows: int) -> LowRankScratch:
        return self._low_rank.LowRankScratch(max_rows)

    def check_experts(self, name: str) -> None:
        """See `Device.check_experts`: all experts are served."""

    def expert_matrix(self, type: QuantType, data: U8, n_cols: int, name: str = "") -> ExpertMatrix:
        return ExpertMatrix.prepare(type, data, n_cols, name)

    def experts_scratch(
        self, routing: Routing, n_embd: int, n_ff: int, max_rows: int
    ) -> ExpertsScratch:
        return self._experts.ExpertsScratch(routing, n_embd, n_ff, max_rows)

    def append_kv(self, k: F32, v: F32, places: I64, layout: TileLayout, start: int) -> None:
        self._attention.append_kv(k, v, places, layout, start)

    def attention_scratch(
        self, n_heads: int, n_kv_heads: int, layout: TileLayout, max_rows: int, n_ctx: int
    ) -> AttentionScratch:
        return self._attention.AttentionScratch(n_heads, n_kv_heads, layout, max_rows, n_ctx)

    def gathered_scratch(
        self, n_heads: int, n_kv_heads: int, layout: TileLayout, room: int
    ) -> GatheredScratch:
        from .attention.decode.gathered import GatheredScratch

        return GatheredScratch(n_heads, n_kv_heads, layout, room)

    def text_scratch(self, head_dim: int) -> TextScratch:
        from .attention.texts.api import TextScratch

        return TextScratch(head_dim)

    def networks(
        self, layers: Mapping[int, Any], n_heads: int, n_kv_heads: int, layout: TileLayout
    ) -> Mapping[int, Any]:
        return layers

    def read_kv(
        self, places: I64, layout: TileLayout, n_kv_heads: int, start: int, stop: int
    ) -> tuple[F32, F32]:
        return read_kv(places, layout, n_kv_heads, start, stop)

    def read_items(self, places: I64, n_kv_heads: int, item_bytes: int) -> U8:
        shape = n_kv_heads, SEGMENT, item_bytes
        parts = [_bytes_at(address, shape) for address in places.tolist()]
        return np.concatenate([np.empty((n_kv_heads, 0, item_bytes), np.uint8), *parts], 1)

    def write_items(self, places: I64, items: U8) -> None:
        shape = len(items), SEGMENT, items.shape[2]
        for i, address in enumerate(places.tolist()):
            _bytes_at(address, shape)[:] = items[:, i * SEGMENT : (i + 1) * SEGMENT]

    # Kept once they are loaded: an attribute is found faster than an import.

    @cached_property
    def pointwise(self) -> ModuleType:
        from . import pointwise

        return pointwise

    @cached_property
    def recurrent(self) -> ModuleType:
        from .recurrent import api

        return api

    @cached_property
    def select(self) -> ModuleType:
        from . import select

        return select

    @cached_property
    def attention(self) -> Callable[..., None]:
        return self._attention.attention

    @cached_property
    def attention_rows(self) -> Callable[..., None]:
        return self._attention.attention_rows

    @cached_property
    def gathered_attention(self) -> Callable[..., None]:
        from .attention.decode.gathered import gathered_attention

        return gathered_attention

    @cached_property
    def text_attention(self) -> Callable[..., None]:
        from .attention.texts.api import text_attention

        return text_attention

    @cached_property
    def experts(self) -> Callable[..., None]:
        return self._experts.experts

    @cached_property
    def _tell_time(self) -> Callable[[int], None]:
        from ..jit.launch.clock import tell_time

        return tell_time

    @cached_property
    def _linear(self) -> Any:
        from . import linear

        return linear

    @cached_property
    def add_low_rank(self) -> Callable[..., None]:
        return self._low_rank.add_low_rank

    @cached_property
    def _low_rank(self) -> Any:
        from . import low_rank

        return low_rank

    @cached_property
    def _experts(self) -> Any:
        from .experts import api

        return api

    @cached_property
    def _attention(self) -> Any:
        from .attention import api

        return api


def _bytes_at(address: int, shape: tuple[int, ...]) -> U8:
    n_bytes = int(np.prod(shape))
    raw = memoryview((ctypes.c_uint8 * n_bytes).from_address(address))
    return np.frombuffer(raw, np.uint8).reshape(shape)


CPU = Cpu()
"""The one CPU."""
