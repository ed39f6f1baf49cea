"""The checking wrappers of attention of one token: over all positions, a window, or lists."""

from typing import Any

import torch
import triton

from ...ops.attention.layout import TileLayout
from ..errors import CudaOpsError
from .tiles import check_floats, check_place, check_tiles, rotation_constants, tile_constants
from .token_kernels import HEADS, PART, attend_kernel, merge_kernel

NO_WINDOW = 1 << 30  # one that hides nothing
MERGE_WARPS = 1


def attend_constants(layout: TileLayout, n_kv_heads: int, group: int, step: int) -> dict[str, Any]:
    """What `attend_kernel` is specialised by, beside what it attends to."""
    return {
        **tile_constants(layout, n_kv_heads), **rotation_constants(layout), "G": group,
        "STEP": step, "PART": PART,
    }  # fmt: skip


def merge_constants(layout: TileLayout, group: int) -> dict[str, Any]:
    """What `merge_kernel` is specialised by."""
    known, names = tile_constants(layout, 1), ("V_KIND", "HEAD_DIM", "BLOCKS")
    return {
        **{name: known[name] for name in names}, **rotation_constants(layout), "G": group,
        "PART": PART, "AT_ONCE": 16,
    }  # fmt: skip


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
    """Memory for one token's attention to up to `room` tokens; nothing is allocated later."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, layout: TileLayout, room: int, device: torch.device
    ) -> None:
        self.n_heads, self.n_kv_heads, self.layout, self.room = n_heads, n_kv_heads, layout, room
        self.group = n_heads // n_kv_heads
        step, self.options = launch_options(layout, is_old(device))
        self.n_parts = triton.cdiv(room + 15, PART)  # a window begins up to 15 tokens into a tile
        width = 32 * triton.next_power_of_2(layout.blocks)
        self.partial = torch.empty((n_heads, self.n_parts, width), device=device)
        self.maxima, self.sums = torch.empty((2, n_heads, self.n_parts), device=device)
        self.attend = attend_constants(layout, n_kv_heads, self.group, step)
        self.merge = merge_constants(layout, self.group)


def _run(
    q: torch.Tensor,
    kv: torch.Tensor,
    index: torch.Tensor | None,
    counts: torch.Tensor,
    out: torch.Tensor,
    log_weights: torch.Tensor | None,
    numbers: tuple[float, float, int],
    s: TokenScratch,
) -> None:
    scale, softcap, window = numbers
    n_rounds = triton.cdiv(s.group, HEADS)
    attend_kernel[(s.n_parts, s.n_kv_heads, n_rounds)](
        q, kv, counts if index is None else index, counts,
        q if log_weights is None else log_weights,
        s.partial, s.maxima, s.sums, scale, softcap, window,
        0 if index is None else index.shape[1], s.n_parts,
        0 if log_weights is None else log_weights.shape[1], **s.attend, LISTED=index is not None,
        WEIGHTED=log_weights is not None, CAPPED=softcap != 0.0, **s.options,
    )  # fmt: skip
    merge_kernel[(s.n_heads,)](
        s.partial, s.maxima, s.sums, counts, out, window, s.n_parts, **s.merge,
        LISTED=index is not None, num_warps=MERGE_WARPS,
    )  # fmt: skip


def token_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    start: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float = 0.0,
    scratch: TokenScratch,
) -> None:
    """out = softmax(cap(scale q K^T)) V of one token over those up to its position, exact.

    q, out float32 (1, H, E); kv uint8 (segments, bytes of a segment); start int32 (1,), on the GPU:
    the token's position, which is appended already. It sees tokens max(0, start - window + 1) ..
    start. cap(s) = softcap tanh(s / softcap), unless softcap is 0. As `ops.attention.attention`.
    Raises CudaOpsError where shapes do not fit.
    """
    s = scratch
    shape = 1, s.n_heads, s.layout.head_dim
    check_floats("attention: q", q, shape)
    check_floats("attention: out", out, shape)
    check_tiles("attention", kv, s.layout, s.n_kv_heads)
    check_place("attention: start", start, 1)
    if window is not None and window < 1:
        raise CudaOpsError(f"attention: window is {window}, expected at least 1")
    if min(window or NO_WINDOW, 1024 * len(kv)) > s.room:
        raise CudaOpsError(
            f"attention: {1024 * len(kv)} tokens and a window of {window}; scratch was made for "
            f"{s.room} tokens"
        )
    _run(q, kv, None, start, out, None, (scale, softcap, window or NO_WINDOW), s)


def gathered_attention(
    q: torch.Tensor,
    lists: torch.Tensor,
    counts: torch.Tensor,
    kv: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    softcap: float = 0.0,
    log_weights: torch.Tensor | None = None,
    scratch: TokenScratch,
) -> None:
    """out[h] = softmax over listed tokens i of (cap(scale q[h] . k_i) + log_weights[h][i]) V.

    q, out float32 (1, H, E); lists int32 (J, room): the tokens of each KV head, of which the first
    counts[j] >= 1 are read, int32 (J,), both on the GPU; log_weights float32 (H, room) or None. As
    `ops.attention.decode.gathered`. Raises CudaOpsError where shapes do not fit.
    """
    s = scratch
    shape = 1, s.n_heads, s.layout.head_dim
    check_floats("gathered attention: q", q, shape)
    check_floats("gathered attention: out", out, shape)
    check_tiles("gathered attention", kv, s.layout, s.n_kv_heads)
    check_place("gathered attention: counts", counts, s.n_kv_heads)
    if lists.ndim != 2 or len(lists) != s.n_kv_heads or lists.dtype != torch.int32:
        raise CudaOpsError(
            f"gathered attention: lists are {lists.dtype} {tuple(lists.shape)}, expected int32 "
            f"({s.n_kv_heads}, room)"
        )
    if lists.shape[1] > s.room:
        raise CudaOpsError(
            f"gathered attention: lists of {lists.shape[1]} tokens, scratch was made for {s.room}"
        )
    if log_weights is not None:
        check_floats("gathered attention: log weights", log_weights, (s.n_heads, lists.shape[1]))
    _run(q, kv, lists, counts, out, log_weights, (scale, softcap, NO_WINDOW), s)
