"""Compiling what contexts that evict need ahead of their first use."""

import numpy as np

from ...jit.arena import aligned
from ..attention import AttentionScratch
from ..attention.layout import SEGMENT, TileLayout
from .api import (
    Stage,
    choose_farthest,
    choose_oldest,
    leaving_attention,
    set_positions,
    settle,
    sign_tokens,
)
from .simhash import SimHash

_SLOTS = 32


def warm(layout: TileLayout, n_heads: int, n_kv_heads: int) -> None:
    """Compile (or load from the cache) the kernels of `hashevict` and `streaming`, for one layout
    and grouping of heads."""
    group = n_heads // n_kv_heads
    memory = aligned(layout.segment_bytes(1) + 2 * SEGMENT * 4, np.uint8)
    memory[:] = 0
    segments = np.array([memory.ctypes.data], np.int64)
    signatures, positions = (segments + layout.segment_bytes(1) + 4 * SEGMENT * i for i in range(2))
    stage, simhash = Stage(layout, group, 1, _SLOTS, 2), SimHash(layout, 16, (0, 0))
    k = np.zeros((2, 1, layout.head_dim), np.float32)
    q = np.zeros((2, group, layout.head_dim), np.float32)
    set_positions(positions, 1, 0, 0, _SLOTS)
    sign_tokens(stage, segments, simhash, (signatures,), 0, _SLOTS)
    stage.put(k, k)
    choose_oldest(stage, _SLOTS, _SLOTS, 0)
    choose_farthest(
        stage, q, simhash, (signatures,), positions, n_slots=_SLOTS, position=_SLOTS, sinks=1,
        recent=1,
    )  # fmt: skip
    leaving_attention(
        stage, q, segments, _SLOTS, np.empty_like(q), scale=1.0,
        scratch=AttentionScratch(group, 1, layout, max_rows=2, n_ctx=SEGMENT),
    )  # fmt: skip
    settle(stage, segments, positions, _SLOTS)
