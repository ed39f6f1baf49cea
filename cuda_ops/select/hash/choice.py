"""The checking wrapper: the nearest signatures by Hamming distance, as `ops.select.nearest`."""

import torch

from ....ops.attention.layout import SEGMENT
from ....ops.select import Lists, Range, Wanted
from ...errors import CudaOpsError
from ...memory import in_memory
from ..lists import ListScratch
from .kernels import (
    Candidates,
    Signatures,
    sample_kernel,
    scan_kernel,
    settle_kernel,
)

WORDS = {32: torch.int32, 64: torch.int64}
"""The type of stored signatures, by their bits."""


class SignatureScratch(ListScratch):
    """Memory for `nearest`; old: see `is_old`."""

    def __init__(
        self,
        n_heads: int,
        n_kv_heads: int,
        n_ctx: int,
        k: int,
        *,
        device: torch.device,
        old: bool = False,
    ) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, device)
        tokens, counts = self.zeros(n_kv_heads, self.room), self.zeros(n_kv_heads)
        self.candidates = Candidates(self.zeros(n_heads), tokens, counts, self.room)
        self.block = 1024 if old else 2048  # candidates that `settle` reads at a time
        self.together = self.group  # query heads that share a pass over the signatures


def nearest(
    queries: torch.Tensor,
    items: torch.Tensor,
    bits: int,
    among: Range,
    wanted: Wanted,
    lists: Lists,
    *,
    taken: object = None,
    scratch: SignatureScratch,
) -> None:
    """Lists of tokens: of `among`, the union of the k nearest of each query head of a KV head.

    queries uint64 (J, G); items: a column of signatures, uint8 (segments, bytes of a segment);
    lists: tokens int32 (J, room) ascending, counts int32 (J,). The same lists as
    `ops.select.nearest`, in four launches whatever the length. Reads bits / 8 bytes a token and KV
    head. Raises CudaOpsError where shapes do not fit.
    """
    s, name = scratch, "nearest signatures"
    if bits not in WORDS:
        raise CudaOpsError(f"{name}: {bits} bits, expected 32 or 64")
    n_segments, shape = s.marks.n_segments, (s.n_kv_heads, s.group)
    if queries.shape != shape or queries.dtype != torch.uint64 or not queries.is_contiguous():
        raise CudaOpsError(
            f"{name}: queries are {queries.dtype} {tuple(queries.shape)}, expected contiguous "
            f"uint64 {shape}"
        )
    words = words_of(name, items, bits, s.n_kv_heads)
    if len(words) != n_segments:
        raise CudaOpsError(f"{name}: {len(words)} segments, scratch was made for {n_segments}")
    s.check(name, lists, wanted.seed)
    place = in_memory(words.device, *among, wanted.k)
    signatures = Signatures(words, queries, int(wanted.seed), 128 // bits)
    constants = {"G": s.group, "BITS": bits}
    sample_kernel[(s.n_kv_heads, s.group)](
        signatures, place, s.candidates.limits, **constants, num_warps=16
    )
    arrays = signatures, place, s.marks, s.candidates
    scan_kernel[(n_segments, s.n_kv_heads)](*arrays, **constants)
    settle_kernel[(s.n_heads,)](*arrays, J=s.n_kv_heads, BLOCK=s.block, **constants, num_warps=8)
    s.place(place, s.candidates.counts, lists)


def words_of(name: str, items: torch.Tensor, bits: int, n_kv_heads: int) -> torch.Tensor:
    """A column of signatures as words (segments, J, 1024). Raises CudaOpsError for other bytes."""
    n_bytes = n_kv_heads * SEGMENT * bits // 8
    if items.dtype != torch.uint8 or items.ndim != 2 or items.shape[1] != n_bytes:
        raise CudaOpsError(
            f"{name}: signatures are {items.dtype} {tuple(items.shape)}, expected uint8 (segments, "
            f"{n_bytes})"
        )
    return items.view(WORDS[bits]).view(len(items), n_kv_heads, SEGMENT)
