"""What the index stores of the 1,024 tokens of a segment of a KV head: 32 blocks of similar keys.

    bits     [block][byte of a sketch][token]  u8    a sketch has `bits` bits: 64, 128, 256
    factors  [block][token]                    f16
    order    [block][token]                    u16   the token of the segment that stands here
    means    [dimension][block]                i8    times scale
    scales   [block]                           f32
    spreads  [block]                           f32   root of the mean |k - mean|^2 of the block

The sketches are those of k - mean: a bit for each of `bits` rotated dimensions, and a factor.
These are 14 bytes and a quarter per token for head_dim 64; a column has whole bytes, so it has 15.
Imports no Numba.
"""

from typing import NamedTuple

from ...attention.layout import SEGMENT

BLOCK = 32  # tokens
BLOCKS = SEGMENT // BLOCK


class Offsets(NamedTuple):
    """Where the arrays of a KV head's segment begin, in bytes; end: where the next head's do."""

    factors: int
    order: int
    means: int
    scales: int
    spreads: int
    end: int


def offsets_of(bits: int) -> Offsets:
    """The offsets for sketches of `bits` bits."""
    factors = SEGMENT * bits // 8
    order = factors + 2 * SEGMENT
    means = order + 2 * SEGMENT
    scales = means + bits * BLOCKS
    item_bytes = bits // 8 + 2 + 2 + bits // BLOCK + 1
    return Offsets(factors, order, means, scales, scales + 4 * BLOCKS, SEGMENT * item_bytes)


def block_item_bytes(bits: int) -> int:
    """Bytes of the column for each token, with sketches of `bits` bits."""
    return offsets_of(bits).end // SEGMENT
