"""The checking wrapper of attention of a chunk of a prompt.

Tiles are unpacked to f16. Without cap and window, torch's `scaled_dot_product_attention` does the
rest, with the causal mask of the chunk; `chunk_kernel` where it cannot. Queries, keys, values and
weights are f16 here, sums float32: errors are those of f16, 2^-11 of the sum of |terms|.
"""

from typing import Any

import torch
import triton
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from ...ops.attention.layout import TileLayout
from ..errors import CudaOpsError
from .prefill_kernels import chunk_kernel, unpack_kernel
from .tiles import check_floats, check_tiles, rotation_constants, tile_constants
from .token import NO_WINDOW, is_old

TOKENS = 32  # that a program unpacks


def unpack_warps(layout: TileLayout) -> int:
    """Warps of a program that unpacks tiles."""
    return 16 if layout.padded > 128 else 4


def chunk_constants(
    n_heads: int, n_kv_heads: int, head_dim: int, capped: bool, old: bool
) -> tuple[dict[str, Any], dict[str, int]]:
    """What `chunk_kernel` is specialised by, and its warps and stages; old: see `is_old`."""
    width = max(triton.next_power_of_2(head_dim), 16)
    rows, step, warps = min(64, 4096 // width), 32, 4  # or less than 384 threads fit
    if old:
        rows, step, warps = (32, 16, 4) if width <= 64 else (16, 16, 8)
    constants = {
        "H": n_heads, "G": n_heads // n_kv_heads, "HEAD_DIM": head_dim, "WIDTH": width,
        "ROWS": rows, "STEP": step, "CAPPED": capped,
    }  # fmt: skip
    return constants, {"num_warps": warps, "num_stages": 1}


class ChunkScratch:
    """Keys and values of up to n_ctx tokens of one layer in f16; made once, used by all layers."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, layout: TileLayout, n_ctx: int, device: torch.device
    ) -> None:
        self.n_heads, self.n_kv_heads, self.layout, self.n_ctx = n_heads, n_kv_heads, layout, n_ctx
        self.old = is_old(device)
        shape = 2, n_kv_heads, n_ctx, layout.head_dim
        self.keys, self.values = torch.empty(shape, dtype=torch.float16, device=device)
        self.constants = {**tile_constants(layout, n_kv_heads), **rotation_constants(layout)}


def _check(
    q: torch.Tensor, kv: torch.Tensor, start: int, out: torch.Tensor, window: int | None,
    s: ChunkScratch,
) -> None:  # fmt: skip
    shape = len(q), s.n_heads, s.layout.head_dim
    check_floats("attention of a chunk: q", q, shape)
    check_floats("attention of a chunk: out", out, shape)
    check_tiles("attention of a chunk", kv, s.layout, s.n_kv_heads)
    stop = start + len(q)
    if start < 0 or len(q) < 1 or stop > min(1024 * len(kv), s.n_ctx):
        raise CudaOpsError(
            f"attention of a chunk: tokens {start} to {stop - 1} lie outside {len(kv)} segments "
            f"of 1,024 or the scratch's {s.n_ctx} tokens"
        )
    if window is not None and window < 1:
        raise CudaOpsError(f"attention of a chunk: window is {window}, expected at least 1")


def chunk_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    start: int,
    out: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float = 0.0,
    scratch: ChunkScratch,
) -> None:
    """out = softmax(cap(scale q K^T) + causal mask) V of a chunk of a prompt.

    q, out float32 (T, H, E) at positions start .. start+T-1, all of which are appended already; the
    rest as `ops.attention.attention`. Raises CudaOpsError where shapes do not fit.
    """
    _check(q, kv, start, out, window, scratch)
    s, n_rows, stop = scratch, len(q), start + len(q)
    first = max(start - window + 1, 0) if window else 0
    n = stop - first
    unpack_kernel[(triton.cdiv(n, TOKENS), s.n_kv_heads)](
        kv, s.keys, s.values, first, n, s.n_ctx, **s.constants, TOKENS=TOKENS,
        num_warps=unpack_warps(s.layout),
    )  # fmt: skip
    if softcap == 0.0 and (window is None or stop <= window):
        rows = q.transpose(0, 1)[None].half()
        keys, values = (x[None, :, :n] for x in (s.keys, s.values))
        mask = causal_lower_right(n_rows, n)
        found = scaled_dot_product_attention(
            rows, keys, values, mask, scale=scale, enable_gqa=s.n_heads != s.n_kv_heads
        )
        out.copy_(found[0].transpose(0, 1))
        return
    shape = s.n_heads, s.n_kv_heads, s.layout.head_dim
    constants, options = chunk_constants(*shape, softcap != 0.0, s.old)
    chunk_kernel[(triton.cdiv(n_rows, constants["ROWS"]), s.n_heads)](
        q, s.keys, s.values, out, first, start, n_rows, s.n_ctx, window or NO_WINDOW, scale,
        softcap, **constants, **options,
    )  # fmt: skip
