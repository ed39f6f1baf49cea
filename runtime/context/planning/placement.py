"""Chooses where keys and values of a context are: in the memory of a GPU, or the host's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....ops.attention.layout import SEGMENT, TileLayout, n_segments
from ....ops.cpu import CPU
from ....ops.device import Device, KVDevice
from ....system.errors import KvarnError
from ....system.spelling import spelt
from ...cache import Axes, open_cache
from ...memory import human_bytes
from ...prefill import Exact
from ...store import Ram, StoreError
from ...store.resident import place_on

if TYPE_CHECKING:
    from ...model import Model
    from ...store import Store
    from .request import ContextRequest

SPARE = 0.1
"""Share of the GPU's memory that stays free where nobody has asked for K and V to be there: what
passes allocate, other programs."""


@dataclass(frozen=True)
class Placement:
    """A store, what has K and V in its memory, and a line that says so ("": there is no choice)."""

    store: Store
    device: Device
    line: str


class KVPlanner:
    """Decides where K and V of a context are, and counts the memory of a GPU that they need."""

    def __init__(self, model: Model, request: ContextRequest) -> None:
        self._model, self._request, self._store = model, request, request.store
        self._device = model.transformer.device

    def place(self, n_ctx: int, kv_on: str) -> Placement:
        """Where K and V of up to `n_ctx` tokens are.

        Raises `StoreError` where `kv_on` is "gpu" and that cannot be: what needs the host, or the
        bytes needed and free.
        """
        device = self._device
        if not isinstance(device, KVDevice):
            if kv_on == "gpu":
                use = f"use {spelt('device')} cuda, too"
                raise StoreError(f"{spelt('kv_on')} gpu: the model is not on a GPU: {use}")
            return Placement(self._store, CPU, "")
        if kv_on == "host":
            return self._host_placement(f"as {spelt('kv_on')} host says")
        if reason := self._host_reason(n_ctx, device):
            if kv_on == "gpu":
                raise StoreError(f"{spelt('kv_on')} gpu: {reason}: use {spelt('kv_on')} host")
            return self._host_placement(reason)
        needed, (free, allocated) = self.bytes_for(n_ctx), device.memory_left()
        spare = 0 if kv_on == "gpu" else int(SPARE * (free + allocated))
        if needed + spare <= free:
            line = f"K and V are on the GPU: {human_bytes(needed)} for {n_ctx:,} tokens"
            return Placement(place_on(self._store, device), device, line)
        short = (
            f"{n_ctx:,} tokens need {human_bytes(needed)} of the GPU's memory for KV cache, "
            f"indexes and buffers, and {human_bytes(free)} are free"
        )
        if kv_on == "auto":
            return self._host_placement(
                short + (", of which a tenth is spared" if needed <= free else "")
            )
        if not (fits := self.most_tokens(n_ctx)):
            raise StoreError(f"{spelt('kv_on')} gpu: {short}: use {spelt('kv_on')} host")
        smaller = (
            "" if self._store.types() == ("q4_0", "q4_0") else f", a smaller {spelt('kv_type')}"
        )
        raise StoreError(
            f"{spelt('kv_on')} gpu: {short}: at most {fits:,} tokens fit: use {spelt('ctx')} "
            f"{fits}{smaller} or {spelt('kv_on')} host"
        )

    def most_tokens(self, limit: int) -> int:
        """How many tokens, up to `limit` and in whole segments below it, the GPU has room for; 0
        where the model is on none."""
        device = self._device
        if not isinstance(device, KVDevice):
            return 0
        free = device.memory_left()[0]
        least, most = self.bytes_for(1), self.bytes_for(limit)
        if most <= free:
            return limit
        # Nearly all of it grows by segments.
        per_segment = (most - least) / max(n_segments(limit) - 1, 1)
        n = 1 + int((free - least) / per_segment) if free >= least else 0
        while n and self.bytes_for(n * SEGMENT) > free:
            n -= 1
        return min(n * SEGMENT, limit)

    def bytes_for(self, n_ctx: int) -> int:
        """Bytes of a GPU's memory that K, V, indexes and buffers of a context need."""
        device, model = self._device, self._model
        assert isinstance(device, KVDevice)
        ram = Ram(*self._store.types(), centred=False)

        def make(meta: Device) -> object:
            assert isinstance(meta, KVDevice)
            axes = Axes(place_on(ram, meta), attend=self._request.attend)
            return open_cache(model.info, n_ctx, model.transformer.max_chunk, axes)

        return max(device.planned_bytes(make) - self._store.gpu_bytes, 0)

    def _host_reason(self, n_ctx: int, device: KVDevice) -> str:
        """Why K and V cannot be on the GPU, whatever the room; or ""."""
        request = self._request
        prefill, evicts = request.prefill or Exact(), request.keep.evicts(n_ctx)
        reason = request.attend.host_only or prefill.host_only
        if reason or evicts:
            reason = reason or f"{spelt('keep')} {request.keep.name}"
            return f"{reason} needs K and V in the host's memory"
        try:
            device.check_served(TileLayout(self._model.config.head_dim, *self._store.types()))
        except KvarnError as error:
            return str(error)
        return ""

    def _host_placement(self, reason: str) -> Placement:
        line = f"K and V are in the host's memory, where the CPU attends to them: {reason}"
        return Placement(self._store, CPU, line)
