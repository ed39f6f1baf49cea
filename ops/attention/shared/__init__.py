"""Attention to long rows that are keys and values at once: each is stored once.

Rows of latent attention have up to 1,024 numbers, more than `TileLayout` serves.
"""

from .layout import MAX_ROW as MAX_ROW
from .layout import SharedLayout as SharedLayout
from .layout import layout_of as layout_of
