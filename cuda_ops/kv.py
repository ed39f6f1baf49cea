"""What a GPU does with K and V in its memory: appending, attention, choices, copies to the host.

Places of a layer are one tensor, uint8 (segments, bytes of a segment), for K and V as for a column.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..ops.attention.layout import SEGMENT, TileLayout, n_segments
from ..ops.device import Device, KVDevice
from ..ops.reference.attention import read_kv
from . import append
from .attention import ChunkScratch, TokenScratch, chunk_attention, token_attention
from .attention import gathered_attention as gathered
from .attention.tiles import check_served
from .attention.token import is_old
from .linear.linear import MAX_TOKENS
from .memory import PlannedBytes, host_tensor, in_memory, telling
from .select import operations
from .select.hash import encoders_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    U8 = NDArray[np.uint8]


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


class KVOperations(KVDevice):
    """The part of a device of torch that stores and attend methods use."""

    def __init__(self, device: torch.device) -> None:
        self.torch = device
        self._old = is_old(device)
        self._select = operations(device, self._old)

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

    def _attention(
        self,
        q: torch.Tensor,
        places: torch.Tensor,
        layout: TileLayout,
        n_kv_heads: int,
        start: int,
        out: torch.Tensor,
        *,
        scratch: AttentionScratch,
        prompt: bool = False,
        **options: Any,
    ) -> None:
        """`ops.attention.attention`. Up to MAX_TOKENS rows have the bits of single tokens, of a
        prompt too; those of more are read as f16."""
        with telling(f"attention of {len(q)} tokens"):
            if len(q) == 1:
                place = in_memory(self.torch, start)
                token_attention(q, places, place, out, scratch=scratch.token, **options)
            elif len(q) <= MAX_TOKENS or scratch.chunk is None:
                for i in range(len(q)):
                    row, place = slice(i, i + 1), in_memory(self.torch, start + i)
                    token_attention(
                        q[row], places, place, out[row], scratch=scratch.token, **options
                    )
            else:
                chunk_attention(q, places, start, out, scratch=scratch.chunk, **options)

    def gathered_scratch(
        self, n_heads: int, n_kv_heads: int, layout: TileLayout, room: int
    ) -> TokenScratch:
        return TokenScratch(n_heads, n_kv_heads, layout, room, self.torch, self._old)

    @property
    def gathered_attention(self) -> Callable[..., None]:
        return gathered

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
