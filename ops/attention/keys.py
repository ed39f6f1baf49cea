"""Reads stored keys and values one by one as floats, to build indexes."""

from numba import types
from numba.extending import intrinsic

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.simd import at_item, write
from .layout import BLOCK, F16, Q4_0, Q8_0, kv_type
from .rotation import rotate_row
from .shape import read_row


@intrinsic(prefer_literal=True)
def _decode_block(typingctx, code, i, row, scales, out):
    """Block i of a stored row of a KV type as 32 floats of `out`; addresses of block 0."""
    kind = kv_type(code.literal_value)

    def codegen(ctx, b, sig, vals):
        _, i, row, scales, out = vals
        row, out = at_item(b, row, i, kind.block_bytes), at_item(b, out, i, 4 * BLOCK)
        scales = at_item(b, scales, i, kind.scale_bytes)
        for n, x in enumerate(read_row(b, kind, row, scales, 0, 2)):
            write(b, x, out, 64 * n)
        return ctx.get_dummy_value()

    return types.void(code, v.INTP, v.INTP, v.INTP, v.INTP), codegen


@jit
def _decode(code, blocks, row, scales, out):
    """A stored row of a KV type as padded float32 at `out`; addresses of its first block."""
    for i in range(blocks):
        if code == F16:
            _decode_block(F16, i, row, scales, out)
        elif code == Q8_0:
            _decode_block(Q8_0, i, row, scales, out)
        else:
            _decode_block(Q4_0, i, row, scales, out)


@jit
def decode_key(tile, r, layout, out):
    """Key r of the tile at address `tile`, as stored (q4_0 is rotated), padded float32 at `out`.

    layout: a StoredLayout.
    """
    scales = tile + layout.scale_offset + r * layout.scale_row_bytes
    _decode(layout.k_type, layout.blocks, tile + r * layout.k_row_bytes, scales, out)


@jit
def read_key(tile, r, layout, out):
    """Key r of the tile at address `tile` as padded float32 at `out`, its rotation undone."""
    decode_key(tile, r, layout, out)
    if layout.rotates_k:
        rotate_row(out, BLOCK * layout.blocks, layout.rotation)


@jit
def read_value(tile, r, layout, out):
    """Value r of the tile at address `tile` as padded float32 at `out`, its rotation undone."""
    row = tile + layout.v_offset + r * layout.v_row_bytes
    scales = tile + layout.scale_offset + r * layout.scale_row_bytes + layout.v_scale
    _decode(layout.v_type, layout.blocks, row, scales, out)
    if layout.rotates_v:
        rotate_row(out, BLOCK * layout.blocks, layout.rotation)
