"""Where new tokens wait until it is known which slots they take. Imports no Numba."""

import numpy as np

from ...jit.arena import aligned
from ..arrays import F32, I64
from ..attention.api import append_kv
from ..attention.layout import SEGMENT, TILE, TileLayout, stored_layout
from ..errors import OpsError
from ..select.choice import ThreadScratch
from .arguments import Scratch
from .signer import MAX_BITS


class Staging(ThreadScratch):
    """Room for up to `max_tokens` tokens on their way into up to `max_slots` slots of a layer.

    Shared by the layers of a context; made once, eviction allocates nothing.
    """

    def __init__(
        self, layout: TileLayout, group: int, n_kv_heads: int, max_slots: int, max_tokens: int
    ) -> None:
        if not 1 <= max_tokens <= SEGMENT:
            raise OpsError(f"Staging: {max_tokens} tokens, expected 1 to {SEGMENT}")
        self.layout, self.group, self.n_kv_heads = layout, group, n_kv_heads
        self.stored = stored_layout(layout)
        self.max_slots, self.max_tokens = max_slots, max_tokens
        self.memory = aligned(layout.segment_bytes(n_kv_heads), np.uint8)
        self.memory[:] = 0  # rows beyond the last token are read, and masked
        self.segments: I64 = np.array([self.memory.ctypes.data], np.int64)
        self.targets = np.zeros((n_kv_heads, max_tokens), np.int32)
        self.first_staged = -(-max_slots // TILE) * TILE
        width = self.first_staged + -(-max_tokens // TILE) * TILE
        self.evicted_by = np.zeros((n_kv_heads, width), np.int32)
        self.n_tokens = 0

    def allocate(self, threads: int) -> None:
        self.scratch = Scratch(
            codes=np.empty((threads, MAX_BITS // 32, self.group), np.uint32),
            lanes=np.empty((threads, 2, 16), np.int32),
        )

    def put(self, k: F32, v: F32) -> None:
        """Store k, v float32 (T, J, E) as the only staged tokens, in the cache's types."""
        if not 1 <= len(k) <= self.max_tokens:
            raise OpsError(f"Staging: {len(k)} tokens, expected 1 to {self.max_tokens}")
        append_kv(k, v, self.segments, self.layout, 0)
        self.n_tokens = len(k)
