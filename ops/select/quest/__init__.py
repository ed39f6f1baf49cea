"""Quest: the least and the greatest key of each tile of 16 tokens, which bound its products.

`layout` draws what is stored of a segment, `build` writes it, `scan` ranks the tiles; `api` has the
wrappers.
"""

from .api import TileScratch, bound_tiles, highest_tiles
from .layout import tile_item_bytes

__all__ = ["TileScratch", "bound_tiles", "highest_tiles", "tile_item_bytes"]
