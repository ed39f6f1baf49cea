"""Compiling what sparse attention needs ahead of its first use."""

import numpy as np

from ...jit.arena import aligned
from ..attention.decode.gathered import GatheredScratch, gathered_attention
from ..attention.layout import SEGMENT, TileLayout
from .choice import Range
from .signatures import Network, SignatureScratch, encode_keys, encode_rows, nearest
from .sketch import Rotation, SketchScratch, best_sketched, sketch_keys

_STORED, _CHOSEN = 64, 4  # tokens


def warm(layout: TileLayout, n_heads: int, n_kv_heads: int) -> None:
    """Compile (or load from the cache) the kernels of methods `hash` (SimHash of 32 bits) and
    `topk` (sketches), and attention to what they choose, for one layout and grouping of heads."""
    group = n_heads // n_kv_heads
    memory = aligned(layout.segment_bytes(1) + 2 * SEGMENT * 64, np.uint8)
    memory[:] = 0
    segments = np.array([memory.ctypes.data], np.int64)
    columns = segments[0] + layout.segment_bytes(1) + SEGMENT * 64 * np.arange(2)
    index, counts = np.zeros((1, SEGMENT), np.uint32), np.zeros(1, np.int64)
    q, among = np.ones((1, group, layout.head_dim), np.float32), Range(1, _STORED - 1, _STORED)

    size = layout.head_dim * 32
    network = Network(np.ones(size + 32, np.float32), (layout.head_dim, 32))
    signatures = np.zeros((1, group), np.uint64)
    encode_keys(network, segments, layout, 1, columns[:1], 0, _STORED)
    encode_rows(network, q[0], signatures[0])
    nearest(
        signatures, columns[:1], 32, among, _CHOSEN, index, counts, seed=0,
        scratch=SignatureScratch(group, 1, SEGMENT, _CHOSEN),
    )  # fmt: skip

    rotation = Rotation.random(layout.head_dim, 0)
    sketch_keys(rotation, segments, layout, 1, columns[:1], columns[1:], 0, _STORED)
    best_sketched(
        q, segments, columns[:1], columns[1:], rotation, among, _CHOSEN, 2 * _CHOSEN, index, counts,
        seed=0, scratch=SketchScratch(group, 1, SEGMENT, 2 * _CHOSEN, layout),
    )  # fmt: skip

    scratch = GatheredScratch(group, 1, layout, SEGMENT)
    gathered_attention(
        q, index, counts, segments, np.empty_like(q), scale=1.0, scratch=scratch
    )  # fmt: skip
