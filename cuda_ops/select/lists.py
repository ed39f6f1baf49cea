"""The lists of a choice: bits of chosen tokens, and their positions, ascending.

bits     int32 (J, segments, 32)   bit t of a segment: token t is chosen
totals   int32 (J, segments)       set bits of each segment
among    int32 (4,), on the GPU    first, last, stop, k: tokens first .. last-1 compete, all
                                   others below stop are taken, each query head takes k
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ...ops.attention.layout import SEGMENT, n_segments
from ..errors import CudaOpsError


@triton.jit
def _below(position, bound):
    """Of the 32 positions from each of `position` on, a bit for those below the bound."""
    n = tl.maximum(bound - position, 0)
    ones = (tl.full(position.shape, 1, tl.int32) << (n & 31)) - 1
    return tl.where(n >= 32, -1, ones)


@triton.jit
def start_list(bits, totals, j, segment, n_segments, first, last, stop):
    """Begin the list of a segment with what is taken: below `first`, and from `last` to `stop`."""
    begin, at = segment * 1024, j * n_segments + segment
    position = begin + tl.arange(0, 32) * 32
    taken = _below(position, first) | (_below(position, stop) & (_below(position, last) ^ -1))
    tl.store(bits + at * 32 + tl.arange(0, 32), taken)
    oldest = tl.minimum(tl.maximum(first - begin, 0), 1024)
    newest = tl.minimum(stop - begin, 1024) - tl.maximum(last - begin, 0)
    tl.store(totals + at, oldest + tl.maximum(newest, 0))


@triton.jit
def choose_tokens(bits, totals, j, n_segments, position, chosen):
    """Set the bits of the positions that are chosen; what was set before is counted once."""
    bit = tl.full(position.shape, 1, tl.int32) << (position % 32)
    word = bits + (j * n_segments * 32 + position // 32)
    old = tl.atomic_or(word, bit, chosen, sem="relaxed")
    fresh = chosen & ((old & bit) == 0)
    place = totals + (j * n_segments + position // 1024)
    tl.atomic_add(place, tl.full(position.shape, 1, tl.int32), fresh, sem="relaxed")


@triton.jit
def kth_digit(counts, wanted, SIZE: tl.constexpr):
    """(digit of the wanted-th smallest, how many are smaller) from the counts of digits (SIZE,)."""
    digit = tl.sum((tl.cumsum(counts, 0) < wanted).to(tl.int32), 0)
    return digit, tl.sum(tl.where(tl.arange(0, SIZE) < digit, counts, 0), 0)


@triton.jit
def place_kernel(bits, among, totals, used, index, counts, room, SEGMENTS: tl.constexpr):
    """index int32 (J, room): the positions of set bits, ascending; counts int32 (J,).

    used int32 (J,): lengths of lists that the choice has read, which begin anew.
    """
    segment, j, n_segments = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    s, stop = tl.arange(0, SEGMENTS), tl.load(among + 2)
    each = tl.load(totals + j * n_segments + s, s * 1024 < stop, 0)
    if segment == 0:
        tl.store(counts + j, tl.sum(each, 0))
        tl.store(used + j, 0)
    if segment * 1024 >= stop:
        return
    before = tl.sum(tl.where(s < segment, each, 0), 0)
    t = tl.arange(0, 1024)
    word = tl.load(bits + (j * n_segments + segment) * 32 + t // 32)
    taken = (word >> (t % 32)) & 1
    at = before + tl.cumsum(taken, 0) - 1
    tl.store(index + j.to(tl.int64) * room + at, segment * 1024 + t, (taken > 0) & (at < room))


class Lists(NamedTuple):
    """Where a choice leaves its lists: index int32 (J, room), ascending, and counts int32 (J,)."""

    index: torch.Tensor
    counts: torch.Tensor


class ListScratch:
    """Memory for lists of tokens of up to n_ctx; nothing is allocated later."""

    def __init__(self, n_heads: int, n_kv_heads: int, n_ctx: int, device: torch.device) -> None:
        self.n_heads, self.n_kv_heads, self.n_ctx = n_heads, n_kv_heads, n_ctx
        self.group, self.n_segments = n_heads // n_kv_heads, n_segments(n_ctx)
        self.device, self.room = device, self.n_segments * SEGMENT
        self.bits = self.zeros(n_kv_heads, self.n_segments, SEGMENT // 32)
        self.totals = self.zeros(n_kv_heads, self.n_segments)

    def zeros(self, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Zeros on the device."""
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def place(
        self, among: torch.Tensor, used: torch.Tensor, index: torch.Tensor, counts: torch.Tensor
    ) -> None:
        """Write the lists of the bits that are set."""
        place_kernel[(self.n_segments, self.n_kv_heads)](
            self.bits, among, self.totals, used, index, counts, index.shape[1],
            SEGMENTS=triton.next_power_of_2(self.n_segments),
        )  # fmt: skip


def check_lists(name: str, index: torch.Tensor, counts: torch.Tensor, s: ListScratch) -> None:
    """Raise CudaOpsError unless index is int32 (J, room) and counts int32 (J,)."""
    heads = s.n_kv_heads
    if index.ndim != 2 or len(index) != heads or index.dtype != torch.int32:
        raise CudaOpsError(
            f"{name}: lists are {index.dtype} {tuple(index.shape)}, expected int32 ({heads}, room)"
        )
    if counts.shape != (heads,) or counts.dtype != torch.int32:
        raise CudaOpsError(
            f"{name}: counts are {counts.dtype} {tuple(counts.shape)}, expected int32 ({heads},)"
        )
