"""The checking wrappers of attention of one token: over all positions, a window, or lists."""

import torch
import triton

from ...ops.attention.layout import TileLayout
from ...ops.attention.softmax import Softmax
from ..errors import CudaOpsError
from ..memory import check_floats, check_place
from .tiles import Tiles, check_tiles
from .token_kernels import HEADS, PART, Parts, Query, Read, attend_kernel, merge_kernel

NO_WINDOW = 1 << 30  # one that hides nothing
PARTS_AT_ONCE = 16  # that a program merges


def is_old(device: torch.device) -> bool:
    """Whether a GPU is older than sm_80, so that Triton has no tensor cores there, or AMD's: what a
    program keeps in registers must be less."""
    return device.type == "cuda" and (
        torch.version.hip is not None or torch.cuda.get_device_capability(device) < (8, 0)
    )


def launch_options(layout: TileLayout, old: bool) -> tuple[int, dict[str, int]]:
    """(tokens at a time, warps and stages) by which no GPU spills, and 384 threads fit or more.

    old: see `is_old`. Nibbles take more registers than bytes, and stages more shared memory.
    """
    width = 32 * triton.next_power_of_2(layout.blocks)
    packed = "q4_0" in (layout.k_type, layout.v_type)
    step = 16 if old or (packed and width > 64) else 32
    stages = 3 if width <= 64 and not packed else 1
    return step, {"num_warps": 4 if width > 128 else 2, "num_stages": stages}


class TokenScratch:
    """Memory for one token's attention to up to `room` tokens; nothing is allocated later.

    old: see `is_old`.
    """

    masses = None  # sums of the softmax, for what the CPU adds to attention over lists

    def __init__(
        self,
        n_heads: int,
        n_kv_heads: int,
        layout: TileLayout,
        room: int,
        device: torch.device,
        old: bool = False,
    ) -> None:
        self.n_heads, self.room, self.tiles = n_heads, room, Tiles(layout, n_kv_heads)
        self.group = n_heads // n_kv_heads
        self.step, self.options = launch_options(layout, old)
        n = triton.cdiv(room + 15, PART)  # a window begins up to 15 tokens into a tile
        weighted = torch.empty((n_heads, n, self.tiles.width), device=device)
        maxima, sums = torch.empty((2, n_heads, n), device=device)
        self.parts = Parts(weighted, maxima, sums, n)


def _run(
    query: Query, kv: torch.Tensor, read: Read, out: torch.Tensor, s: TokenScratch, *, listed: bool
) -> None:
    constants = {"T": s.tiles, "G": s.group, "PART": PART, "LISTED": listed}
    n_rounds = triton.cdiv(s.group, HEADS)
    attend_kernel[(s.parts.n, s.tiles.heads, n_rounds)](
        query, kv, read, s.parts, STEP=s.step, CAPPED=query.softcap != 0.0, **constants, **s.options
    )
    merge_kernel[(s.n_heads,)](s.parts, read, out, AT_ONCE=PARTS_AT_ONCE, **constants, num_warps=1)


def _check(
    name: str, q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, s: TokenScratch
) -> None:
    shape = 1, s.n_heads, s.tiles.layout.head_dim
    check_floats(f"{name}: q", q, shape)
    check_floats(f"{name}: out", out, shape)
    check_tiles(name, kv, s.tiles)


def token_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    start: torch.Tensor,
    out: torch.Tensor,
    *,
    softmax: Softmax,
    window: int | None = None,
    scratch: TokenScratch,
) -> None:
    """out = softmax(scale q K^T) V of one token over those up to its position, exact.

    q, out float32 (1, H, E); kv uint8 (segments, bytes of a segment); start int32 (1,), on the GPU:
    the token's position, which is appended already. It sees tokens max(0, start - window + 1) ..
    start. As `ops.attention.api.attention`. Raises CudaOpsError where shapes do not fit.
    """
    s = scratch
    _check("attention", q, kv, out, s)
    check_place("attention: start", start, 1)
    if window is not None and window < 1:
        raise CudaOpsError(f"attention: window is {window}, expected at least 1")
    if min(window or NO_WINDOW, 1024 * len(kv)) > s.room:
        raise CudaOpsError(
            f"attention: {1024 * len(kv)} tokens and a window of {window}; scratch was made for "
            f"{s.room} tokens"
        )
    read = Read(start, start, 0, window or NO_WINDOW)
    _run(Query(q, *softmax.scoring), kv, read, out, s, listed=False)


def gathered_attention(
    q: torch.Tensor,
    lists: torch.Tensor,
    counts: torch.Tensor,
    kv: torch.Tensor,
    out: torch.Tensor,
    *,
    softmax: Softmax,
    scratch: TokenScratch,
) -> None:
    """out[h] = softmax over listed tokens i of scale q[h] . k_i  V.

    q, out float32 (1, H, E); lists int32 (J, room): the tokens of each KV head, of which the first
    counts[j] >= 1 are read, int32 (J,), both on the GPU. As `ops.attention.decode.gathered`. Raises
    CudaOpsError where shapes do not fit.
    """
    s = scratch
    _check("gathered attention", q, kv, out, s)
    check_place("gathered attention: counts", counts, s.tiles.heads)
    if lists.ndim != 2 or len(lists) != s.tiles.heads or lists.dtype != torch.int32:
        raise CudaOpsError(
            f"gathered attention: lists are {lists.dtype} {tuple(lists.shape)}, expected int32 "
            f"({s.tiles.heads}, room)"
        )
    if lists.shape[1] > s.room:
        raise CudaOpsError(
            f"gathered attention: lists of {lists.shape[1]} tokens, scratch was made for {s.room}"
        )
    read = Read(lists, counts, lists.shape[1], NO_WINDOW)
    _run(Query(q, *softmax.scoring), kv, read, out, s, listed=True)
