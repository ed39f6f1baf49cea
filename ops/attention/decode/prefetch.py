"""Prefetches rows while others are in use: those of a later tile, or of a list of tokens.

The type of the argument `rows` says which, when a kernel is compiled:

    int       address of a tile, whose rows lie together
    (int,)    address of int64 [16][3]: addresses of key, value and scales of each row of a list

Keys of a list are prefetched when these addresses are written (`rows`).
"""

from llvmlite import ir

from ....jit import simd as v
from ....jit.simd import at, at_item, emit_prefetch, read
from ..layout import TILE
from ..shape import shaped

KEY, VALUE, SCALES = 0, 8, 16  # bytes from the first address of a row
NEXT = 24  # from a row's addresses to the next one's


def _prefetch(b, place, first, n_bytes):
    """Prefetch n_bytes from `first` on into L2, a request for each line of 64."""
    for line in range(first, first + n_bytes, 64):
        emit_prefetch(b, at(b, place, line), 2)


def _is_list(rows):
    return isinstance(rows.type, ir.ArrayType)


def _row(b, rows, i, part):
    """Address of a part of row i of a list."""
    return read(b, at_item(b, b.extract_value(rows, 0), i, NEXT), v.I64, part)


@shaped()
def prefetch_keys(b, shape, rows, i):
    """Prefetch the keys of rows i and i + 1; of a list, their scales."""
    size = shape.layout.k_row_bytes
    if not _is_list(rows):
        _prefetch(b, at_item(b, rows, i, size), 0, 2 * size)
    elif shape.layout.scale_row_bytes:
        for k in (0, 1):
            _prefetch(b, _row(b, rows, b.add(i, ir.Constant(v.I64, k)), SCALES), 0, 1)


@shaped()
def prefetch_value(b, shape, rows, i):
    """Prefetch the share of the values that is due at token i % 16 of strip i // 16."""
    share = shape.layout.v_row_bytes // (shape.vectors // shape.strip)
    if not _is_list(rows):
        _prefetch(b, at_item(b, rows, i, share), shape.layout.v_offset, share)
        return
    t = b.and_(i, ir.Constant(v.I64, TILE - 1))
    strip = b.lshr(i, ir.Constant(v.I64, TILE.bit_length() - 1))
    _prefetch(b, at_item(b, _row(b, rows, t, VALUE), strip, share), 0, share)


@shaped()
def prefetch_scales(b, shape, rows):
    """Prefetch the scales of a tile; those of a list come with its keys."""
    if not _is_list(rows):
        first = shape.layout.scale_offset
        _prefetch(b, rows, first, shape.layout.tile_bytes - first)
