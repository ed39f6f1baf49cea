"""What the index keeps of the 1,024 tokens of a segment of a KV head: 32 blocks of similar keys.

    bits     [block][byte of a sketch][token]  u8    a sketch has `bits` bits: 64, 128, 256
    factors  [block][token]                    f16
    order    [block][token]                    u16   the token of the segment that stands here
    means    [dimension][block]                i8    times scale
    scales   [block]                           f32
    spreads  [block]                           f32   root of the mean |k - mean|^2 of the block

A sketch is that of k - mean: a bit for each of `bits` rotated dimensions, and a factor (`sketch`).
Per token 14 bytes for head_dim 64, in items of 15: a column has whole bytes for each token.
Imports no Numba.
"""

from ...attention.layout import SEGMENT

BLOCK = 32  # tokens
BLOCKS = SEGMENT // BLOCK


def block_item_bytes(bits: int) -> int:
    """Bytes of the column for each token, with sketches of `bits` bits."""
    return bits // 8 + 2 + 2 + bits // BLOCK + 1
