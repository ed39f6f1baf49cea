"""What the kernels for means of blocks work on. Imports no Numba."""

from typing import NamedTuple

from ....jit.launch import arguments as arrays
from ...attention.arguments import BlockOutputs
from ...attention.layout import StoredLayout


class Stored(NamedTuple):
    """Stored keys and values, where the means go, and scratch of each thread.

    segments, items: addresses.
    """

    segments: arrays.I64_1D
    layout: StoredLayout
    items: arrays.I64_1D
    means: StoredLayout
    works: arrays.F32_2D
    """The keys of a segment, then what is computed of a block."""
    order: arrays.U16_2D
    """The tokens of a segment, by block."""
    entries: arrays.U64_2D
    spare: arrays.U64_2D
    histogram: arrays.I64_2D


class Tail(NamedTuple):
    """One token's query heads (1, H, E), what they attended to, and the output of that."""

    q: arrays.F32_3D
    lists: arrays.U32_2D
    counts: arrays.I64_1D
    items: arrays.I64_1D
    """Addresses of the full segments."""
    masses: arrays.F32_2D
    """[query head][2]: see `GatheredMemory`."""
    out: arrays.F32_3D


class Memory(NamedTuple):
    """Scratch of attention to means."""

    works: arrays.U8_2D
    """Of each thread: `work.token_work_bytes`."""
    left: arrays.U8_2D
    """Of each thread: how many tokens of a block were not chosen."""
    weights: arrays.F32_2D
    """Of each thread: the logarithm of that."""
    logs: arrays.F32_1D
    """Of each number that `left` can have: the logarithm of 1 to 32; any other hides a block."""
    blocks: BlockOutputs


class RowTail(NamedTuple):
    """Query heads of rows of tokens (T, H, E), what they attended to, and the output of that."""

    q: arrays.F32_3D
    lists: arrays.U32_3D
    counts: arrays.I64_2D
    items: arrays.I64_1D
    """Addresses of the full segments."""
    softmaxes: arrays.F32_3D
    """(T, H, 2): see `ListedRows`."""
    out: arrays.F32_3D


class RowMemory(NamedTuple):
    """Scratch of each thread, for a block of rows."""

    works: arrays.F32_2D
    """`work.chunk_work_floats`"""
    newest: arrays.I64_2D
    """Position of the last row of each panel."""
    left: arrays.U8_3D
    """[token][block]: how many tokens of a block it did not read; the last line is of a token
    without a list."""
    places: arrays.I64_2D
    """Of each token: how many of its list have been counted."""
    live: arrays.I64_2D
    """Of each panel: a bit for each tile of blocks that has weight for one of its rows."""
