"""Where the parts of a segment's blocks begin, see `layout`."""

from ....jit.cached import jit
from ...attention.layout import SEGMENT
from .layout import BLOCKS, block_item_bytes

_item_bytes = jit(block_item_bytes)


@jit
def head_bytes(bits):
    """Bytes of a KV head's part of a segment."""
    return SEGMENT * _item_bytes(bits)


@jit
def factors_at(bits):
    """Offset of the factors in a KV head's part of a segment."""
    return SEGMENT * bits // 8


@jit
def order_at(bits):
    """Offset of the order."""
    return factors_at(bits) + 2 * SEGMENT


@jit
def means_at(bits):
    """Offset of the means."""
    return order_at(bits) + 2 * SEGMENT


@jit
def scales_at(bits):
    """Offset of the scales; the spreads stand behind them."""
    return means_at(bits) + bits * BLOCKS
