"""Prefetching rows while others are used: those of a later tile, or of a list of tokens.

Where rows come from is known when a kernel is compiled, by the type of what stands for them:

    int       address of a tile, whose rows lie together
    (int,)    address of int64 [16][3]: where the key, value and scales of each row of a list lie

Keys of a list are prefetched when those addresses are written (`rows`): the first to touch a page
may wait for its translation, which holds up what follows, so they had better wait together.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ....jit import simd as v
from ....jit.simd import at, at_item, emit_prefetch, read
from ..layout import TILE

KEY, VALUE, SCALES = 0, 8, 16  # bytes from the first address of a row
NEXT = 24  # from a row's addresses to the next one's


def _prefetch(b, place, first, n_bytes):
    """Prefetch n_bytes from `first` on into L1, a request for each line of 64."""
    for line in range(first, first + n_bytes, 64):
        emit_prefetch(b, at(b, place, line))


def _row(b, table, i, part):
    """Pointer to a part of row i of a list."""
    return at(b, read(b, at_item(b, table, i, NEXT), v.I64, part))


def _prefetches(emit):
    """An intrinsic (shape, rows, i): `emit` by whether rows are of a list."""

    @intrinsic
    def prefetch(typingctx, shape, rows, i):
        of_list = isinstance(rows, types.BaseTuple)

        def codegen(ctx, b, sig, vals):
            rows = cgutils.unpack_tuple(b, vals[1], 1)[0] if of_list else vals[1]
            emit(b, shape, of_list, rows, vals[2])
            return ctx.get_dummy_value()

        return types.void(shape, rows, types.intp), codegen

    return prefetch


@_prefetches
def prefetch_keys(b, shape, of_list, rows, i):
    """Prefetch the keys of rows i and i + 1; of a list, their scales."""
    size = shape.layout.k_row_bytes
    if not of_list:
        _prefetch(b, at_item(b, rows, i, size), 0, 2 * size)
    elif shape.layout.scale_row_bytes:
        for k in (0, 1):
            _prefetch(b, _row(b, rows, b.add(i, ir.Constant(v.I64, k)), SCALES), 0, 1)


@_prefetches
def prefetch_value(b, shape, of_list, rows, i):
    """Prefetch the share of the values that is due at token i % 16 of strip i // 16."""
    strips = shape.vectors // shape.strip
    share = shape.layout.v_row_bytes // strips
    if not of_list:
        _prefetch(b, at_item(b, rows, i, share), shape.layout.v_offset, share)
        return
    t = b.and_(i, ir.Constant(v.I64, TILE - 1))
    strip = b.lshr(i, ir.Constant(v.I64, TILE.bit_length() - 1))
    _prefetch(b, at_item(b, _row(b, rows, t, VALUE), strip, share), 0, share)


@_prefetches
def prefetch_scales(b, shape, of_list, rows, i):
    """Prefetch the scales of a tile; those of a list come with its keys."""
    if not of_list:
        first = shape.layout.scale_offset
        _prefetch(b, rows, first, shape.layout.tile_bytes - first)
