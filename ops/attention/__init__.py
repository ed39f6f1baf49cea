"""Attention over a KV cache of tiles: the layout of the bytes, writing them, and reading them.

`TileLayout`, `TILE`, `SEGMENT` are there at once; what runs kernels is imported on first use.
"""

from typing import TYPE_CHECKING, Any

from .layout import KV_TYPES, SEGMENT, TILE, TileLayout, n_segments

if TYPE_CHECKING:
    from .api import AttentionScratch, append_kv, attention

_LAZY = ("AttentionScratch", "append_kv", "attention")

__all__ = [
    "KV_TYPES",
    "SEGMENT",
    "TILE",
    "AttentionScratch",
    "TileLayout",
    "append_kv",
    "attention",
    "n_segments",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from . import api

        # Found in this module from now on: the next import of the name does not come here.
        value = globals()[name] = getattr(api, name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
