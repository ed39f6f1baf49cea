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
from ..layout import TILE
from ..shape import at, read

KEY, VALUE, SCALES = 0, 8, 16  # bytes from the first address of a row
NEXT = 24  # from a row's addresses to the next one's
_LINE = 64


def _prefetch(b, place, first, n_bytes):
    """Prefetch n_bytes from `first` on into L1, a request for each 64."""
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


def _prefetches(emit):
    """An intrinsic (shape, rows, i): `emit` by whether rows are of a list."""

    @intrinsic
    def prefetch(typingctx, shape, rows, i):
        listed = isinstance(rows, types.BaseTuple)

        def codegen(ctx, b, sig, vals):
            rows = cgutils.unpack_tuple(b, vals[1], 1)[0] if listed else vals[1]
            emit(b, shape, listed, rows, vals[2])
            return ctx.get_dummy_value()

        return types.void(shape, rows, types.intp), codegen

    return prefetch


@_prefetches
def prefetch_keys(b, shape, listed, rows, i):
    """Prefetch the keys of rows i and i + 1; of a list, their scales."""
    size = shape.layout.k_row_bytes
    if not listed:
        _prefetch(b, b.gep(at(b, rows), [_times(b, i, size)]), 0, 2 * size)
    elif shape.layout.scale_row_bytes:
        for k in (0, 1):
            _prefetch(b, _row(b, rows, b.add(i, ir.Constant(v.I64, k)), SCALES), 0, 1)


@_prefetches
def prefetch_value(b, shape, listed, rows, i):
    """Prefetch the share of the values that is due at token i % 16 of strip i // 16."""
    strips = shape.vectors // shape.strip
    share = shape.layout.v_row_bytes // strips
    if not listed:
        _prefetch(b, b.gep(at(b, rows), [_times(b, i, share)]), shape.layout.v_offset, share)
        return
    t = b.and_(i, ir.Constant(v.I64, TILE - 1))
    strip = b.lshr(i, ir.Constant(v.I64, TILE.bit_length() - 1))
    _prefetch(b, b.gep(_row(b, rows, t, VALUE), [_times(b, strip, share)]), 0, share)


@_prefetches
def prefetch_scales(b, shape, listed, rows, i):
    """Prefetch the scales of a tile; those of a list come with its keys."""
    if not listed:
        first = shape.layout.scale_offset
        _prefetch(b, at(b, rows), first, shape.layout.tile_bytes - first)
