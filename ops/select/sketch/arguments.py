"""What the kernels for sketches work on. Imports no Numba."""

from typing import NamedTuple

import numpy as np

from ....jit.arena import aligned
from ....jit.launch import arguments as arrays
from ...arrays import F32
from ...attention.layout import StoredLayout
from ..choice import Candidates, Lists, Rerank, RowLists


def sketch_bits(head_dim: int) -> int:
    """Bits of a sketch: head_dim up to 64, 128, 256, 512, and beyond that to a multiple of 64."""
    return next((n for n in (64, 128, 256, 512) if head_dim <= n), -(-head_dim // 64) * 64)


class Rotation(NamedTuple):
    """A rotation R of padded keys: float32 `[in][out]` of (bits, bits), then `bits` zeros, flat."""

    weights: arrays.F32_1D
    bits: int

    @staticmethod
    def random(head_dim: int, seed: int) -> "Rotation":
        """The Q of the QR factorisation of a normal matrix from NumPy's generator with `seed`."""
        bits = sketch_bits(head_dim)
        normal = np.random.default_rng(seed).standard_normal((bits, bits))
        q, r = np.linalg.qr(normal)
        q = (q * np.sign(np.diag(r))).astype(np.float32)
        return Rotation(np.concatenate([q.ravel(), np.zeros(bits, np.float32)]), bits)


class Frame(NamedTuple):
    """What a sketch is of: (k - centre) scales; a query is divided by the scales.

    float32 (J, bits), from head_dim on 0, 1 and 1.
    """

    centre: arrays.F32_2D
    scales: arrays.F32_2D
    inverse: arrays.F32_2D
    """1 / scales"""

    @staticmethod
    def of(centre: F32, scales: F32) -> "Frame":
        """The frame of a centre and scales float32 (J, E)."""
        n_heads, head_dim = centre.shape
        frame = Frame(*(aligned((n_heads, sketch_bits(head_dim)), np.float32) for _ in range(3)))
        for rows, inside, outside in (
            (frame.centre, centre, 0.0),
            (frame.scales, scales, 1.0),
            (frame.inverse, 1 / scales, 1.0),
        ):
            rows[:, :head_dim], rows[:, head_dim:] = inside, outside
        return frame

    @staticmethod
    def plain(n_kv_heads: int, head_dim: int) -> "Frame":
        """The frame in which keys are as they are."""
        centre = np.zeros((n_kv_heads, head_dim), np.float32)
        return Frame.of(centre, np.ones_like(centre))


class SketchedKeys(NamedTuple):
    """Stored keys and their sketches: base addresses of the segments of K and V and of two columns
    of rotation.bits / 8 and 2 bytes, what they are rotated by, and in which frame."""

    segments: arrays.I64_1D
    bits: arrays.I64_1D
    factors: arrays.I64_1D
    rotation: Rotation
    frame: Frame


class KeySums(NamedTuple):
    """Stored keys, and their sums of each segment; segments: addresses."""

    segments: arrays.I64_1D
    layout: StoredLayout
    sums: arrays.F32_3D
    """[segment][kv head][padded]"""
    squares: arrays.F32_3D
    """The sums of their squares."""
    works: arrays.F32_2D
    """Of each thread: a key."""


class Keys(NamedTuple):
    """Stored keys, and where their sketches go. segments: addresses."""

    segments: arrays.I64_1D
    layout: StoredLayout
    sketches: SketchedKeys
    slots: arrays.I32_2D
    """(J, T or more): the slots that tokens have taken in each KV head; (0, 0): tokens in order."""
    works: arrays.F32_2D
    """Of each thread: a key and its rotation."""


class Query(NamedTuple):
    """One token's query heads (1, H, E), what they choose from, and the lists they fill.

    taken: see `Range`; (J, 0) where only the tokens outside the range are taken.
    """

    q: arrays.F32_3D
    keys: SketchedKeys
    taken: arrays.U64_2D
    lists: Lists


class Search(NamedTuple):
    """Scratch of a choice by estimates (`choose`); of each thread."""

    rerank: Rerank
    rotated: arrays.F32_3D
    """A query head, and its rotation."""
    tables: arrays.I8_4D
    """[query][half byte][16]: sums of signs, see `queries`."""
    order: arrays.I64_2D
    """Segments, in the order in which they are scanned."""
    candidates: Candidates


class Scan(NamedTuple):
    """What a scan of sketches writes, for two segments alternately; of each thread."""

    limits: arrays.U8_3D
    """int8 [query][64]: the least sums that can reach a query's limit, less one."""
    masks: arrays.U64_4D
    """[buffer][query][word]: tokens whose sums do."""
    sums: arrays.I8_4D
    """[buffer][query][token]"""


class Scratch(NamedTuple):
    """Of each thread."""

    search: Search
    scan: Scan


class RowQueries(NamedTuple):
    """Query heads of rows of tokens (R, H, E), what they choose from, and the lists they fill."""

    q: arrays.F32_3D
    keys: SketchedKeys
    lists: RowLists


class Spread(NamedTuple):
    """What a scan for many queries reads of a segment's sketches; of each thread and segment."""

    planes: arrays.U8_3D
    """Of each 128 tokens: [half byte of the bits][token]."""
    classes: arrays.U8_3D
    """[token]: of its factor, see `sums`."""
    factors: arrays.F32_3D


class RowScratch(NamedTuple):
    """Of each thread, for the rows of a block; a query is one head of one row."""

    rerank: Rerank
    rotated: arrays.F32_3D
    tables: arrays.I8_4D
    """[query] of those of `Search`, as are limits, entries and counts of `Candidates`."""
    limits: arrays.F32_2D
    entries: arrays.U64_3D
    counts: arrays.I64_2D
    floors: arrays.F32_2D
    """[query]: what all candidates reach."""
    passes: arrays.I64_2D
    """The first query of each pass that is to be scanned."""
    order: arrays.I64_2D
    sample: arrays.U8_2D
    """A sample of sketches: their bits, then their factors."""
    spread: Spread
    """Of a segment, or of all segments of the sample."""
    scan: Scan
    places: arrays.U32_2D
    marks: arrays.U64_2D
