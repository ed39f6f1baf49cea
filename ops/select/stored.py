"""Where the key of a token is stored."""

from ...jit.cached import jit
from ..attention.keys import read_key
from ..attention.layout import SEGMENT, TILE


@jit
def tile_of(segments, j, t, layout):
    """Address of the tile that holds token t of KV head j; layout: `StoredLayout`."""
    head = segments[t // SEGMENT] + j * layout.head_bytes
    return head + t % SEGMENT // TILE * layout.tile_bytes


@jit
def read_stored_key(segments, j, t, layout, x):
    """Read key t of KV head j, its rotation undone, as padded float32 at address x."""
    read_key(tile_of(segments, j, t, layout), t % TILE, layout, x)
