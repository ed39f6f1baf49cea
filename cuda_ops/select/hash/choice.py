"""The checking wrapper: the nearest signatures by Hamming distance, as `ops.select.nearest`."""

import torch

from ....ops.attention.layout import SEGMENT
from ...attention.tiles import check_place
from ...attention.token import is_old
from ...errors import CudaOpsError
from ..lists import ListScratch, check_lists
from .kernels import ENOUGH, SAMPLE, sample_kernel, scan_kernel, settle_kernel

_WORD = {32: torch.int32, 64: torch.int64}
BLOCK, OLD_BLOCK = 2048, 1024  # candidates that `settle` reads at a time; old: see `is_old`
WARPS = {"sample": 8, "settle": 16}


class SignatureScratch(ListScratch):
    """Memory for `nearest`."""

    def __init__(self, n_heads: int, n_kv_heads: int, n_ctx: int, device: torch.device) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, device)
        self.limits = self.zeros(n_heads)
        self.candidates = self.zeros(n_kv_heads, self.room)
        self.n_candidates = self.zeros(n_kv_heads)
        self.block = OLD_BLOCK if is_old(device) else BLOCK


def nearest(
    queries: torch.Tensor,
    words: torch.Tensor,
    bits: int,
    among: torch.Tensor,
    index: torch.Tensor,
    counts: torch.Tensor,
    *,
    seed: int,
    scratch: SignatureScratch,
) -> None:
    """Lists of tokens: of `among`, the union of the k nearest of each query head of a KV head.

    queries (J, G) and words (segments, J, 1024) are signatures, int32 or int64 by their bits; among
    int32 (first, last, stop, k), on the GPU; index int32 (J, room) ascending, counts int32 (J,).
    The same lists as `ops.select.nearest`, in four launches whatever the length. Reads bits / 8
    bytes a token and KV head. Raises CudaOpsError where shapes do not fit.
    """
    s = scratch
    if bits not in _WORD:
        raise CudaOpsError(f"nearest signatures: {bits} bits, expected 32 or 64")
    if not 0 <= seed < 1 << 31:  # more would be 64 bits wide in the kernels
        raise CudaOpsError(f"nearest signatures: seed is {seed}, expected 0 to 2^31 - 1")
    wanted = (s.n_kv_heads, s.group), (s.n_segments, s.n_kv_heads, SEGMENT)
    for name, x, shape in zip(("queries", "words"), (queries, words), wanted):
        if tuple(x.shape) != shape or x.dtype != _WORD[bits] or not x.is_contiguous():
            raise CudaOpsError(
                f"nearest signatures: {name} are {x.dtype} {tuple(x.shape)}, expected contiguous "
                f"{_WORD[bits]} {shape}"
            )
    check_place("nearest signatures: among", among, 4)
    check_lists("nearest signatures", index, counts, s)
    # An argument: times a constant, the compiler would no longer see that popcount is one.
    given = words, queries, among, seed, 128 // bits, s.limits
    sample_kernel[(s.n_kv_heads,)](
        *given, G=s.group, BITS=bits, SAMPLE=SAMPLE, ENOUGH=ENOUGH, num_warps=WARPS["sample"]
    )
    found = s.bits, s.totals, s.candidates, s.n_candidates
    scan_kernel[(s.n_segments, s.n_kv_heads)](*given, *found, s.room, G=s.group, BITS=bits)
    settle_kernel[(s.n_heads,)](
        *given, *found, s.n_segments, s.room, J=s.n_kv_heads, G=s.group, BITS=bits, BLOCK=s.block,
        num_warps=WARPS["settle"],
    )  # fmt: skip
    s.place(among, s.n_candidates, index, counts)
