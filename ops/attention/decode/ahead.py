"""Rows that are asked for while others are used: the tile that comes next, or rows of a list.

Where rows come from is known when a kernel is compiled, by the type of what stands for them:

    int       address of a tile, whose rows lie together
    (int,)    address of int64 [16][3]: where the key, value and scales of each row of a list lie

Keys of a list are asked for when those addresses are written (`listed`): the first to touch a page
may wait for its translation, which holds up what follows, so they had better wait together.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ....jit import simd as v
from ..layout import TILE
from ..shape import at, read

KEY, VALUE, SCALES = 0, 8, 16  # bytes from the first address of a row
NEXT = 24  # from a row's addresses to the next one's
_LINE = 64


def _ask(b, place, first, n_bytes):
    """Ask for n_bytes from `first` on into L1, a request for each 64."""
    how = [ir.Constant(v.I32, k) for k in (0, 3, 1)]
    for line in range(first, first + n_bytes, _LINE):
        p = b.gep(place, [ir.Constant(v.I64, line)])
        v.call(b, "llvm.prefetch.p0", ir.VoidType(), p, *how)


def _times(b, i, n):
    return b.mul(i, ir.Constant(v.I64, n))


def _row(b, table, i, part):
    """Pointer to a part of row i of a list."""
    entry = b.gep(at(b, table), [_times(b, i, NEXT)])
    return at(b, read(b, entry, part, v.I64))


def _asker(emit):
    """An intrinsic (shape, ahead, i): `emit` by whether rows are of a list."""

    @intrinsic
    def ask(typingctx, shape, ahead, i):
        listed = isinstance(ahead, types.BaseTuple)

        def codegen(ctx, b, sig, vals):
            ahead = cgutils.unpack_tuple(b, vals[1], 1)[0] if listed else vals[1]
            emit(b, shape, listed, ahead, vals[2])
            return ctx.get_dummy_value()

        return types.void(shape, ahead, types.intp), codegen

    return ask


@_asker
def ask_keys(b, shape, listed, ahead, i):
    """Ask for the keys of rows i and i + 1; of a list for the scales."""
    size = shape.layout.k_row_bytes
    if not listed:
        _ask(b, b.gep(at(b, ahead), [_times(b, i, size)]), 0, 2 * size)
    elif shape.layout.scale_row_bytes:
        for k in (0, 1):
            _ask(b, _row(b, ahead, b.add(i, ir.Constant(v.I64, k)), SCALES), 0, 1)


@_asker
def ask_value(b, shape, listed, ahead, i):
    """Ask for what of the values is due at the i-th of 16 steps for each strip of them."""
    strips = shape.vectors // shape.strip
    share = shape.layout.v_row_bytes // strips
    if not listed:
        _ask(b, b.gep(at(b, ahead), [_times(b, i, share)]), shape.layout.v_offset, share)
        return
    t = b.and_(i, ir.Constant(v.I64, TILE - 1))
    strip = b.lshr(i, ir.Constant(v.I64, TILE.bit_length() - 1))
    _ask(b, b.gep(_row(b, ahead, t, VALUE), [_times(b, strip, share)]), 0, share)


@_asker
def ask_scales(b, shape, listed, ahead, i):
    """Ask for the scales of a tile; those of a list are asked for with their keys."""
    if not listed:
        first = shape.layout.scale_offset
        _ask(b, at(b, ahead), first, shape.layout.tile_bytes - first)
