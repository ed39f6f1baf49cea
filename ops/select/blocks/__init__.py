"""The second level of sketches: blocks of 32 similar keys, which a query rules out by their mean.

How 1,024 tokens are put into blocks (order), what is kept of them (layout, build), and the search
(scan) with its wrappers (api).
"""

from .api import BlockScratch, best_in_blocks, block_keys
from .layout import block_item_bytes

__all__ = ["BlockScratch", "best_in_blocks", "block_item_bytes", "block_keys"]
