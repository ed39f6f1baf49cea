"""The checking wrapper of attention over lists of tokens, and its scratch."""

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Table, kernels
from ....jit.threads import n_threads
from ...errors import OpsError
from ..layout import TileLayout, n_segments
from ..work import listed_work_bytes, token_work_bytes
from .tables import CALL, SCRATCH

# Elements of K that one thread gathers in less than the others need to wake.
SERIAL_ELEMENTS = 32_768
F32 = NDArray[np.float32]
U32 = NDArray[np.uint32]


_attend = kernels(f"{__package__}.listed", "listed_kernel")
_merge = kernels(f"{__package__}.listed", "merge_listed_kernel")


def _array(*shape: int) -> F32:
    return aligned(int(np.prod(shape)), np.float32)[: int(np.prod(shape))].reshape(shape)  # type: ignore[no-any-return]


class GatherScratch:
    """Memory for attention over lists of up to `room` tokens; nothing is allocated later.

    Query heads that share a KV head are handled up to 4 at a time (`heads`), in `groups` rounds.
    """

    def __init__(self, n_heads: int, n_kv_heads: int, layout: TileLayout, room: int) -> None:
        if n_kv_heads < 1 or n_heads % n_kv_heads:
            raise OpsError(
                f"attention: {n_heads} query heads cannot share {n_kv_heads} KV heads evenly"
            )
        self.n_heads, self.n_kv_heads, self.layout, self.room = n_heads, n_kv_heads, layout, room
        group = n_heads // n_kv_heads
        self.groups = -(-group // 4)
        self.heads = -(-group // self.groups)
        rows = self.heads * self.groups
        self.merged = _array(n_heads, layout.padded)
        self.partial = _array(n_segments(room), n_kv_heads, rows, layout.padded)
        self.maxima, self.totals = np.empty((2, *self.partial.shape[:3]), np.float32)
        codes = *layout.codes, self.heads
        self.attend, self.merge = _attend(*codes), _merge(*codes)
        self.call, self.arrays = Table(CALL), Table(SCRATCH)
        self.threads = 0

    def ready(self, threads: int) -> None:
        """Have scratch for each of `threads` threads."""
        if threads > self.threads:
            size = token_work_bytes(self.layout.padded, self.heads * self.groups)
            self.work = aligned(threads * size, np.uint8).reshape(threads, size)
            size = listed_work_bytes(self.layout.tile_bytes)
            self.rooms = aligned(threads * size, np.uint8).reshape(threads, size)
            self.arrays(self.work, self.rooms, self.partial, self.maxima, self.totals, self.merged)
            self.threads = threads


NO_WEIGHTS = np.empty((0, 0), np.float32)


def gathered_attention(
    q: F32,
    index: U32,
    counts: NDArray[np.int64],
    segments: NDArray[np.int64],
    out: F32,
    *,
    scale: float,
    softcap: float = 0.0,
    log_weights: F32 = NO_WEIGHTS,
    scratch: GatherScratch,
) -> None:
    """out[h] = softmax over listed tokens i of (cap(scale q[h] . k_i) + log_weights[h][i]) V.

    q, out float32 (1, H, E); index uint32 (J, room): the tokens of each KV head, ascending for
    speed, of which the first counts[j] >= 1 are read; log_weights float32 (H, room) or none.
    Bit-equal for any number of threads. Raises OpsError where shapes do not fit; that indices
    lie within the store is the caller's to see to.
    """
    s = scratch
    shape = 1, s.n_heads, s.layout.head_dim
    for name, x in (("q", q), ("out", out)):
        if x.shape != shape or x.dtype != np.float32 or not x.flags.c_contiguous:
            raise OpsError(f"gathered attention: {name} is {x.dtype} {x.shape}, expected {shape}")
    if (
        index.shape[0] != s.n_kv_heads
        or index.dtype != np.uint32
        or counts.shape != index.shape[:1]
    ):
        raise OpsError(
            f"gathered attention: lists are {index.dtype} {index.shape} with {counts.shape} "
            f"lengths, expected uint32 ({s.n_kv_heads}, room)"
        )
    if not 1 <= counts.min() <= counts.max() <= min(s.room, index.shape[1]):
        raise OpsError(
            f"gathered attention: lists of {counts.min()} to {counts.max()} tokens, expected 1 to "
            f"{min(s.room, index.shape[1])}"
        )
    if log_weights.size and log_weights.shape != (s.n_heads, index.shape[1]):
        raise OpsError(
            f"gathered attention: log weights are {log_weights.shape}, expected "
            f"{(s.n_heads, index.shape[1])}"
        )
    few = int(counts.sum()) * s.layout.padded <= SERIAL_ELEMENTS
    s.ready(n_threads())
    call = s.call(q, index, counts, segments, log_weights, out)
    s.attend(call, s.arrays.address, float(scale), float(softcap), parallel=not few)
    s.merge(call, s.arrays.address, parallel=not few)
