"""Stored keys as floats, for what looks at them one by one: signatures and sketches."""

from numba import types
from numba.extending import intrinsic

from ...jit.cached import jit
from .layout import KV_TYPES
from .rotation import rotate_row
from .shape import at, read_row, write


@intrinsic(prefer_literal=True)
def _decode_block(typingctx, kind, row, scale, out):
    """32 floats at `out` from a stored block at `row` with its scale at `scale`."""
    name = KV_TYPES[kind.literal_value]

    def codegen(ctx, b, sig, vals):
        row, scale, out = (at(b, x) for x in vals[1:])
        for i, x in enumerate(read_row(b, name, row, scale, 0, 2)):
            write(b, out, 64 * i, x)
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n), codegen


@jit
def decode_key(tile, r, layout, out):
    """Key r of the tile at address `tile`, as stored (q4_0 is rotated), padded float32 at `out`.

    layout: a StoredLayout.
    """
    row, scale = (
        tile + r * layout.k_row_bytes,
        tile + layout.scale_offset + r * layout.scale_row_bytes,
    )
    for i in range(layout.blocks):
        if layout.k_type == 0:
            _decode_block(0, row + 64 * i, scale, out + 128 * i)
        elif layout.k_type == 1:
            _decode_block(1, row + 32 * i, scale + 2 * i, out + 128 * i)
        else:
            _decode_block(2, row + 16 * i, scale + 2 * i, out + 128 * i)


@jit
def read_key(tile, r, layout, out):
    """Key r of the tile at address `tile` as padded float32 at `out`, not rotated any more."""
    decode_key(tile, r, layout, out)
    if layout.k_type == 2:
        rotate_row(out, 32 * layout.blocks, layout.rotation)
