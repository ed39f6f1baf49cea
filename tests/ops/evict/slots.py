"""Slots of one layer, in plain memory, for kernels that evict."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvarn.ops.attention import SEGMENT, TileLayout, n_segments
from kvarn.ops.attention.api import append_kv
from kvarn.ops.attention.layout import layout_of
from kvarn.ops.evict import (
    Protected,
    Signatures,
    Signer,
    SlotColumns,
    Staging,
    choose_farthest,
    set_positions,
    sign_tokens,
    write_staged,
)
from kvarn.ops.reference.attention import read_kv

SINKS, RECENT = 4, 10


def column(n_segs: int, n_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    raw = np.zeros(n_segs * n_bytes + 64, np.uint8)
    memory = raw[-raw.ctypes.data % 64 :][: n_segs * n_bytes].reshape(n_segs, n_bytes)
    return memory, memory.ctypes.data + n_bytes * np.arange(n_segs, dtype=np.int64)


@dataclass
class Slots:
    """Slots of one layer in plain memory, with the arrays the kernels write."""

    layout: TileLayout
    heads: int
    kv_heads: int
    n_slots: int
    bits: int
    centre: NDArray[np.float32] | None = None
    memory: list[NDArray[np.uint8]] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = n_segments(self.n_slots)
        sizes = [self.layout.segment_bytes(self.kv_heads), *[4 * SEGMENT * self.kv_heads] * 3]
        self.memory, (self.segments, self.positions, low, high) = zip(
            *(column(n, size) for size in sizes)
        )
        self.signer = Signer(self.layout, self.bits, (7,), self.centre)
        self.signatures = Signatures(low, high if self.signer.words == 2 else low)
        group = self.heads // self.kv_heads
        self.staging = Staging(self.layout, group, self.kv_heads, self.n_slots, 64)

    def fill(self, k: NDArray[np.float32], v: NDArray[np.float32]) -> None:
        append_kv(k, v, self.segments, self.layout, 0)
        set_positions(self.positions, self.kv_heads, 0, 0, len(k))
        sign_tokens(self.staging, self.segments, self.signer, self.signatures, 0, len(k))

    def replace(self, q, k, v, position: int, by_key: bool = False) -> None:
        self.staging.put(k, v)
        choose_farthest(
            self.staging,
            q,
            self.signer,
            SlotColumns(self.signatures, self.positions, self.n_slots),
            position=position,
            protected=Protected(SINKS, RECENT),
            by_key=by_key,
        )
        write_staged(self.staging, self.segments, self.positions, position)

    def items(self, which: int) -> NDArray[np.uint32]:
        """(KV heads, slots) of a column: 1 positions, 2 and 3 words of signatures."""
        rows = self.memory[which].view(np.uint32).reshape(-1, self.kv_heads, SEGMENT)
        return rows.swapaxes(0, 1).reshape(self.kv_heads, -1)[:, : self.n_slots]

    def bits_of(self, head: int) -> NDArray[np.bool_]:
        words = np.stack([self.items(2 + w)[head] for w in range(self.signer.words)], -1)
        raw = np.unpackbits(words.astype("<u4").view(np.uint8), axis=-1, bitorder="little")
        assert not raw[:, self.bits :].any()
        return raw[:, : self.bits].astype(bool)

    def stored(self):
        return read_kv(self.segments, self.layout, self.kv_heads, 0, self.n_slots)


def tokens(n: int, heads: int, kv_heads: int, head_dim: int):
    rng = np.random.default_rng(n + heads)
    q = rng.standard_normal((n, heads, head_dim)).astype(np.float32)
    k, v = rng.standard_normal((2, n, kv_heads, head_dim)).astype(np.float32)
    return q, k, k if head_dim > 512 else v


def filled(case: tuple, n_tokens: int):
    head_dim, k_type, v_type, heads, kv_heads, n_slots, bits = case
    slots = Slots(layout_of(head_dim, k_type, v_type), heads, kv_heads, n_slots, bits)
    q, k, v = tokens(n_tokens, heads, kv_heads, head_dim)
    slots.fill(k[:n_slots], v[:n_slots])
    return slots, q, k, v


# head_dim, K type, V type, query heads, KV heads, slots, bits
CASES = [
    (64, "f16", "f16", 8, 2, 100, 16),
    (80, "q8_0", "f16", 3, 3, 15, 4),
    (128, "q4_0", "q8_0", 20, 1, 64, 33),
    (96, "q4_0", "q4_0", 4, 1, 1030, 64),
    (33, "f16", "q4_0", 36, 1, 47, 24),
    (576, "q8_0", "q8_0", 8, 1, 60, 16),  # keys are values
]
