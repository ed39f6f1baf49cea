"""Attention where K and V are in the host's memory and the model on another device."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import ClassVar

from ....models.attention import Attention
from ....ops.device import Array, Device, Recorded


class HostedAttention:
    """`models.attention.Attention` for arrays of `device`: each layer's q, k and v are brought to
    the host, where `attention` works on them, and its result goes back."""

    graphs: ClassVar[dict[Hashable, Recorded] | None] = None  # the host's part cannot be recorded
    unrecorded: ClassVar[frozenset[int]] = frozenset()

    def __init__(self, attention: Attention, device: Device) -> None:
        self._attention, self._device = attention, device

    @property
    def every_query(self) -> bool:
        return self._attention.every_query

    def state(self, layer: int) -> Sequence[Array]:
        return self._attention.state(layer)

    def __call__(self, layer: int, q: Array, k: Array, v: Array, out: Array) -> None:
        self._device.on_host(partial(self._attention, layer), (q, k, v), out)


def attention_for(device: Device, attention: Attention, place: Device) -> Attention:
    """`attention` over K and V of the device `place`, for a model on `device`."""
    return attention if place is device else HostedAttention(attention, device)
