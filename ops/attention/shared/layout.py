"""The layout of tiles whose rows are keys and values at once. Imports no Numba.

    tile     = [16 rows][16 scale rows][zeros up to a multiple of 64 bytes]

Whoever reads keys or values by the numbers of a `TileLayout` finds the same bytes for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...errors import OpsError
from ..layout import KV_TYPES, TileLayout

MAX_ROW = 1024
"""Numbers of a row, at most."""
_MAX_APART = 512
"""Of a row that a `TileLayout` serves."""


@dataclass(frozen=True)
class SharedLayout(TileLayout):
    """A `TileLayout` in which the value of a token is its key.

    Raises OpsError for two types, or a row that no kernel serves.
    """

    def __post_init__(self) -> None:
        if self.k_type not in KV_TYPES:
            known = ", ".join(KV_TYPES)
            raise OpsError(f"KV cache: unknown type {self.k_type!r}; use one of {known}")
        if self.v_type != self.k_type:
            raise OpsError(
                f"KV cache: rows of {self.head_dim} are keys and values at once, found types "
                f"{self.k_type}/{self.v_type}, expected one type"
            )
        if not _MAX_APART < self.head_dim <= MAX_ROW:
            raise OpsError(
                f"KV cache: rows of {self.head_dim}; {_MAX_APART + 1} to {MAX_ROW} is supported"
            )

    @cached_property
    def v_offset(self) -> int:
        """Byte of the first row."""
        return 0

    @cached_property
    def v_scale(self) -> int:
        """Byte of the first scale in a scale row."""
        return 0


def layout_of(head_dim: int, k_type: str, v_type: str) -> TileLayout:
    """How keys and values of this size are stored: rows that are too long for two, once."""
    kind = SharedLayout if head_dim > _MAX_APART else TileLayout
    return kind(head_dim, k_type, v_type)
