"""The lists of a choice: bits of chosen tokens, and their positions, ascending.

Kernels read what they choose from as int32 in the GPU's memory: first, last, stop, k (of sketches
n_candidates, too). Tokens first .. last-1 compete, all others below stop are taken, and each query
head takes k.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ...ops.attention.layout import SEGMENT, n_segments
from ...ops.select import Lists
from ..errors import CudaOpsError


class Marks(NamedTuple):
    """Chosen tokens.

    bits int32 (J, segments, 32): bit t of a segment is set if its token t is chosen; totals int32
    (J, segments): set bits of each segment.
    """

    bits: torch.Tensor
    totals: torch.Tensor
    n_segments: int


@triton.jit
def _below(position, bound):
    """Of the 32 positions from each of `position` on, a bit for those below the bound."""
    n = tl.maximum(bound - position, 0)
    ones = (tl.full(position.shape, 1, tl.int32) << (n & 31)) - 1
    return tl.where(n >= 32, -1, ones)


@triton.jit
def start_list(marks, among, j, segment):
    """Begin the list of a segment with what is taken: below `first`, and from `last` to `stop`."""
    first, last, stop = tl.load(among), tl.load(among + 1), tl.load(among + 2)
    begin, at = segment * 1024, j * marks.n_segments + segment
    position = begin + tl.arange(0, 32) * 32
    taken = _below(position, first) | (_below(position, stop) & (_below(position, last) ^ -1))
    tl.store(marks.bits + at * 32 + tl.arange(0, 32), taken)
    oldest = tl.minimum(tl.maximum(first - begin, 0), 1024)
    newest = tl.minimum(stop - begin, 1024) - tl.maximum(last - begin, 0)
    tl.store(marks.totals + at, oldest + tl.maximum(newest, 0))


@triton.jit
def choose_tokens(marks, j, position, chosen):
    """Set the bits of the positions that are chosen; what was set before is counted once."""
    bit = tl.full(position.shape, 1, tl.int32) << (position % 32)
    word = marks.bits + (j * marks.n_segments * 32 + position // 32)
    old = tl.atomic_or(word, bit, chosen, sem="relaxed")
    fresh = chosen & ((old & bit) == 0)
    place = marks.totals + (j * marks.n_segments + position // 1024)
    tl.atomic_add(place, tl.full(position.shape, 1, tl.int32), fresh, sem="relaxed")


@triton.jit
def place_kernel(marks, among, used, tokens, counts, room, SEGMENTS: tl.constexpr):
    """tokens int32 (J, room): the positions of set bits, ascending; counts int32 (J,).

    used int32 (J,): lengths of lists that the choice has read, which begin anew.
    """
    segment, j = tl.program_id(0), tl.program_id(1)
    s, stop, line = tl.arange(0, SEGMENTS), tl.load(among + 2), j * marks.n_segments
    each = tl.load(marks.totals + line + s, s * 1024 < stop, 0)
    if segment == 0:
        tl.store(counts + j, tl.sum(each, 0))
        tl.store(used + j, 0)
    if segment * 1024 >= stop:
        return
    before = tl.sum(tl.where(s < segment, each, 0), 0)
    t = tl.arange(0, 1024)
    word = tl.load(marks.bits + (line + segment) * 32 + t // 32)
    taken = (word >> (t % 32)) & 1
    at = before + tl.cumsum(taken, 0) - 1
    place = tokens + j.to(tl.int64) * room + at
    tl.store(place, segment * 1024 + t, (taken > 0) & (at < room))


class ListScratch:
    """Memory for lists of tokens of up to n_ctx; nothing is allocated later."""

    def __init__(self, n_heads: int, n_kv_heads: int, n_ctx: int, device: torch.device) -> None:
        self.n_heads, self.n_kv_heads, self.device = n_heads, n_kv_heads, device
        self.group, n = n_heads // n_kv_heads, n_segments(n_ctx)
        self.room = n * SEGMENT
        bits, totals = self.zeros(n_kv_heads, n, SEGMENT // 32), self.zeros(n_kv_heads, n)
        self.marks = Marks(bits, totals, n)

    def zeros(self, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Zeros on the device."""
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def place(self, among: torch.Tensor, used: torch.Tensor, lists: Lists) -> None:
        """Write the lists of the bits that are set."""
        n = self.marks.n_segments
        place_kernel[(n, self.n_kv_heads)](
            self.marks, among, used, *lists, lists.tokens.shape[1],
            SEGMENTS=triton.next_power_of_2(n),
        )  # fmt: skip

    def check(self, name: str, lists: Lists, seed: int) -> None:
        """Raise CudaOpsError unless the lists are int32 (J, room) and (J,), and the seed fits."""
        heads, (tokens, counts) = self.n_kv_heads, lists
        if not 0 <= seed < 1 << 31:  # more would be 64 bits wide in the kernels
            raise CudaOpsError(f"{name}: seed is {seed}, expected 0 to 2^31 - 1")
        if tokens.ndim != 2 or len(tokens) != heads or tokens.dtype != torch.int32:
            raise CudaOpsError(
                f"{name}: lists are {tokens.dtype} {tuple(tokens.shape)}, expected int32 "
                f"({heads}, room)"
            )
        if counts.shape != (heads,) or counts.dtype != torch.int32:
            raise CudaOpsError(
                f"{name}: counts are {counts.dtype} {tuple(counts.shape)}, expected int32 "
                f"({heads},)"
            )
