"""Attention over a KV cache of tiles: the layout of its bytes (`layout`), and the operations that
write and read them (`api`, `decode.gathered`, `prefill.listed`).
"""

from .layout import KV_TYPES as KV_TYPES
from .layout import SEGMENT as SEGMENT
from .layout import TILE as TILE
from .layout import TileLayout as TileLayout
from .layout import n_segments as n_segments
