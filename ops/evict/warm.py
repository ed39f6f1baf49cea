"""Compiling what contexts that evict need ahead of their first use."""

import numpy as np

from ...jit.arena import aligned
from ..attention import AttentionScratch
from ..attention.layout import SEGMENT, TileLayout
from .api import (
    choose_farthest,
    choose_oldest,
    set_positions,
    sign_tokens,
    staged_attention,
    write_staged,
)
from .arguments import Protected, Signatures
from .signer import Signer
from .staging import Staging

_SLOTS = 32


def warm(layout: TileLayout, n_heads: int, n_kv_heads: int) -> None:
    """Compile (or load from the cache) the kernels of `hashevict` and `streaming`, for one layout
    and grouping of heads."""
    group = n_heads // n_kv_heads
    memory = aligned(layout.segment_bytes(1) + 2 * SEGMENT * 4, np.uint8)
    memory[:] = 0
    segments = np.array([memory.ctypes.data], np.int64)
    words, positions = (segments + layout.segment_bytes(1) + 4 * SEGMENT * i for i in range(2))
    signatures = Signatures(low=words, high=words)
    staging, signer = Staging(layout, group, 1, _SLOTS, 2), Signer(layout, 16, (0, 0))
    scratch = AttentionScratch(group, 1, layout, max_rows=2, n_ctx=SEGMENT)
    k = np.zeros((2, 1, layout.head_dim), np.float32)
    q = np.zeros((2, group, layout.head_dim), np.float32)
    set_positions(positions, 1, 0, 0, _SLOTS)
    sign_tokens(staging, segments, signer, signatures, 0, _SLOTS)
    staging.put(k, k)
    choose_oldest(staging, _SLOTS, _SLOTS, 0)
    choose_farthest(
        staging,
        q,
        signer,
        signatures,
        positions,
        n_slots=_SLOTS,
        position=_SLOTS,
        protected=Protected(sinks=1, recent=1),
    )
    out = np.empty_like(q)
    staged_attention(staging, q, segments, _SLOTS, out, scale=1.0, scratch=scratch)
    write_staged(staging, segments, positions, _SLOTS)
