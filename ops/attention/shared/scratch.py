"""The memory of attention to shared rows, with its kernels. Imports no Numba."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....jit.launch import DefinedKernel, lazy_kernels
from ..api import AttentionScratch
from .layout import SharedLayout

if TYPE_CHECKING:
    from ...device import Device, Scratch
    from ..layout import TileLayout


@lazy_kernels
def _attend(code: int, blocks: int, heads: int) -> DefinedKernel:
    from .kernels import make_attend

    return make_attend(code, blocks, heads)


@lazy_kernels
def _merge(code: int, blocks: int) -> DefinedKernel:
    from .kernels import make_merge

    return make_merge(code, blocks)


@lazy_kernels
def _attend_chunk(code: int, blocks: int) -> DefinedKernel:
    from .kernels import make_chunk

    return make_chunk(code, blocks)


class SharedScratch(AttentionScratch):
    """`AttentionScratch` for a `SharedLayout`: `attention` and `attention_rows` take it."""

    def __init__(
        self,
        n_heads: int,
        n_kv_heads: int,
        layout: SharedLayout,
        max_rows: int,
        n_ctx: int,
    ) -> None:
        super().__init__(n_heads, n_kv_heads, layout, max_rows, n_ctx)
        code, _, blocks = layout.codes
        self.attend = _attend(code, blocks, self.heads)
        self.merge = _merge(code, blocks)
        self.attend_chunk = _attend_chunk(code, blocks)


def attention_scratch(
    device: Device,
    n_heads: int,
    n_kv_heads: int,
    layout: TileLayout,
    max_rows: int,
    n_ctx: int,
) -> Scratch:
    """`device.attention_scratch` for any layout; that of shared rows is the CPU's."""
    if isinstance(layout, SharedLayout):
        return SharedScratch(n_heads, n_kv_heads, layout, max_rows, n_ctx)
    return device.attention_scratch(n_heads, n_kv_heads, layout, max_rows, n_ctx)
