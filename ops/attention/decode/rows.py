"""Locates, prefetches and copies into a tile the rows of a list of tokens.

While a tile of 16 rows is in use, the rows of the next tiles are fetched. Keys are prefetched
together when they are located: the first touch of a page may wait for its address translation, and
with it all later loads. Values and scales are prefetched between products (`prefetch`).
"""

import numpy as np

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import word
from ....jit.simd import prefetch, read, store, write
from ..layout import TILE
from ..shape import shaped, tile_of
from ..work import ADDRESSES, KEY_TILES, MOST_TILES, PREFETCH_TILES
from .prefetch import KEY, NEXT, SCALES, VALUE, prefetch_keys, prefetch_value


def _copier(n_bytes):
    """A function (shape, source, target) that copies n_bytes(shape) between addresses."""

    @shaped()
    def copy(b, shape, source, target):
        done, left = 0, n_bytes(shape)
        for size in (64, 32, 16, 8, 4, 2):
            while left >= size:
                write(b, read(b, source, v.vty(v.I8, size), done), target, done)
                done, left = done + size, left - size

    return copy


_copy_key = _copier(lambda shape: shape.layout.k_row_bytes)
_copy_value = _copier(lambda shape: shape.layout.v_row_bytes)
_copy_scales = _copier(lambda shape: shape.layout.scale_row_bytes)


@jit
def _locate(shape, index, first, segments, head, rows):
    """Write the addresses of 16 listed tokens from index uint32[first] on, and prefetch their keys.

    rows: the address for them, see `prefetch`. Rows beyond the list's end repeat its last token.
    """
    for i in range(TILE):
        token = np.int64(index[min(first + i, len(index) - 1)])
        tile = tile_of(shape, segments, head, token)
        r, row = token % TILE, rows + NEXT * i
        key = tile + r * shape.k_row_bytes
        for line in range(0, shape.k_row_bytes, 64):
            prefetch(key, line)
        store(row, KEY, key)
        store(row, VALUE, tile + shape.v_offset + r * shape.v_row_bytes)
        store(row, SCALES, tile + shape.scale_offset + r * shape.scale_row_bytes)


@jit
def _ahead(values):
    """Tiles between a prefetch and its use."""
    return PREFETCH_TILES if values else KEY_TILES


@jit
def tile_in(room):
    """Address of the tile for copies of rows; room: `gathered_work_bytes`."""
    return room + MOST_TILES * ADDRESSES


@jit
def locate_first(shape, index, segments, head, values, room):
    """Locate the first rows of a list index uint32[n], and prefetch all of them."""
    for i in range(_ahead(values)):
        rows = room + i * ADDRESSES
        _locate(shape, index, i * TILE, segments, head, rows)
        for r in range(0, TILE, 2):
            prefetch_keys(shape, (rows,), r)
        if values:
            for r in range(TILE * (shape.vectors // shape.strip)):
                prefetch_value(shape, (rows,), r)


@jit
def next_tile(shape, index, i, segments, head, values, room):
    """Copy the rows of tile i of a list, and locate later ones. Returns these, see `prefetch`."""
    ahead = _ahead(values)
    rows, tile = room + i % ahead * ADDRESSES, tile_in(room)
    for r in range(TILE):
        row = rows + NEXT * r
        scales = tile + shape.scale_offset + r * shape.scale_row_bytes
        _copy_key(shape, word(row, KEY), tile + r * shape.k_row_bytes)
        _copy_scales(shape, word(row, SCALES), scales)
        if values:
            value = tile + shape.v_offset + r * shape.v_row_bytes
            _copy_value(shape, word(row, VALUE), value)
    _locate(shape, index, (i + ahead) * TILE, segments, head, rows)
    return (rows,)
