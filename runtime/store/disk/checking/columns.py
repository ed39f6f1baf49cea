"""What columns of indexes may hold: numbers that name a place have a range, floats are finite.

Checked where all of a pack is read anyway, by `verify` and so by import. Kernels keep to these
ranges by themselves, whatever a file says, so opening a pack reads no column.

    means-…         the block of each token: each of the 32 blocks has 32
    tables-KxL-…    the first entry of each group: ascending, up to the 16,384 entries of a run
    all of these, frame, centre and the factors of sketch-…: finite floats

Zeros are sound: a layer without an index has them. The bits of signatures and sketches may have any
value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from .....ops.arrays import U8
from .....ops.attention.layout import SEGMENT
from .....ops.select.means.layout import BLOCK, BLOCKS, TILES, means_item_bytes, means_layout
from .....ops.select.tables.planes import RUN, Tables
from ...finite import Flags, infinite_f16
from ..files import DIGEST

_TABLES = re.compile(r"tables-([4-9]|1[0-6])x([2-9]|[1-9]\d{1,2}|1000)-")  # as `Tables` allows
Faults = Iterator[tuple[str, Flags]]
"""A fault, in words, and which of the heads have it."""


class ColumnSegment(NamedTuple):
    """A segment of a column. heads: uint8 (layers x J, bytes), what it holds of each KV head;
    number: of the segment, of `n_segments` that the column has."""

    name: str
    heads: U8
    head_dim: int
    number: int
    n_segments: int


def column_faults(segment: ColumnSegment) -> Iterator[tuple[int, str]]:
    """(row of `heads`, what is wrong there); row 0 for items of another size than the index has."""
    kind = segment.name.split("-", 1)[0]
    if kind == "sketch" and "-factors" in segment.name:
        kind = "factors"
    if kind not in CHECKS or (kind == "tables" and not _TABLES.match(segment.name)):
        return
    item_bytes, faults = CHECKS[kind]
    stored, expected = segment.heads.shape[1] // SEGMENT, item_bytes(segment)
    if stored != expected:
        yield 0, f"it has {stored} bytes per token, expected {expected}"
        return
    for fault, rows in faults(segment):
        yield from ((int(row), fault) for row in np.flatnonzero(rows))


def infinite_f32(numbers: U8) -> Flags:
    """Rows of bytes in which not all float32 are finite."""
    return np.asarray(~np.isfinite(np.ascontiguousarray(numbers).view("<f4")).all(-1))


def _means_faults(segment: ColumnSegment) -> Faults:
    layout, heads = means_layout(segment.head_dim), segment.heads
    end = TILES * layout.tile_bytes
    blocks = heads[:, end : end + SEGMENT]
    wrong = (np.sort(blocks) != np.repeat(np.arange(BLOCKS), BLOCK)).any(-1)
    yield f"not all of its blocks have {BLOCK} tokens", wrong & blocks.any(-1)
    tiles = heads[:, :end].reshape(len(heads), TILES, layout.tile_bytes)
    scales = tiles[..., layout.scale_offset :].reshape(len(heads), -1)
    yield "a scale is not finite", infinite_f16(scales)


def _tables_of(name: str) -> Tables:
    bits, number = map(int, name.split("-")[1].split("x"))
    return Tables(bits, number)


def _tables_faults(segment: ColumnSegment) -> Faults:
    tables, (run, place) = _tables_of(segment.name), divmod(segment.number, RUN // SEGMENT)
    if run >= segment.n_segments * SEGMENT // RUN:
        return  # of a run that is not full: computed again
    for i in range(min(tables.tables_each, tables.number - place * tables.tables_each)):
        at = i * tables.table_bytes + 2 * RUN
        items = np.ascontiguousarray(segment.heads[:, at : at + 2 * (tables.groups + 1)])
        starts = items.view("<u2").astype(np.int64)
        wrong = (np.diff(starts) < 0).any(-1) | (starts[:, -1] > RUN)
        yield f"the groups of table {place * tables.tables_each + i} are not within it", wrong


def _frame_bytes(segment: ColumnSegment) -> int:
    return -(-(8 * segment.head_dim + DIGEST) // SEGMENT)


def _frame_faults(segment: ColumnSegment) -> Faults:
    numbers = segment.heads[:, : 8 * segment.head_dim]
    yield "the mean key or a scale is not finite", infinite_f32(numbers)


def _factor_faults(segment: ColumnSegment) -> Faults:
    yield "a factor is not finite", infinite_f16(segment.heads)


CHECKS: dict[str, tuple[Callable[[ColumnSegment], int], Callable[[ColumnSegment], Faults]]] = {
    "means": (lambda segment: means_item_bytes(segment.head_dim), _means_faults),
    "tables": (lambda segment: _tables_of(segment.name).item_bytes, _tables_faults),
    "frame": (_frame_bytes, _frame_faults),
    "centre": (_frame_bytes, _frame_faults),
    "factors": (lambda segment: 2, _factor_faults),
}
"""First word of a column's name → its bytes per token, and what is wrong with a segment of it. A
registered method can add the checks of its index."""
