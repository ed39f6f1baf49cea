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
from ...ops.attention.softmax import Softmax
from ..errors import CudaOpsError
from ..memory import check_floats
from .prefill_kernels import Rows, Unpacked, chunk_kernel, unpack_kernel
from .tiles import Tiles, check_tiles
from .token import NO_WINDOW

TOKENS = 32  # that a program unpacks


def _chunk_constants(n_heads: int, tiles: Tiles, capped: bool, old: bool) -> dict[str, Any]:
    """What `chunk_kernel` is specialised by; old: see `is_old`."""
    width = max(triton.next_power_of_2(tiles.layout.head_dim), 16)
    rows, step, warps = min(64, 4096 // width), 32, 4  # or less than 384 threads fit
    if old:
        rows, step, warps = (32, 16, 4) if width <= 64 else (16, 16, 8)
    return {
        "H": n_heads, "G": n_heads // tiles.heads, "HEAD_DIM": tiles.layout.head_dim,
        "WIDTH": width, "ROWS": rows, "STEP": step, "CAPPED": capped, "num_warps": warps,
        "num_stages": 1,
    }  # fmt: skip


class ChunkScratch:
    """Keys and values of up to n_ctx tokens of one layer in f16; made once, used by all layers.

    old: see `is_old`.
    """

    def __init__(
        self,
        n_heads: int,
        n_kv_heads: int,
        layout: TileLayout,
        n_ctx: int,
        device: torch.device,
        old: bool = False,
    ) -> None:
        self.n_heads, self.n_ctx, self.old = n_heads, n_ctx, old
        self.tiles = Tiles(layout, n_kv_heads)
        shape = 2, n_kv_heads, n_ctx, layout.head_dim
        self.keys, self.values = torch.empty(shape, dtype=torch.float16, device=device)


def _check(
    q: torch.Tensor, kv: torch.Tensor, start: int, out: torch.Tensor, window: int | None,
    s: ChunkScratch,
) -> None:  # fmt: skip
    shape = len(q), s.n_heads, s.tiles.layout.head_dim
    check_floats("attention of a chunk: q", q, shape)
    check_floats("attention of a chunk: out", out, shape)
    check_tiles("attention of a chunk", kv, s.tiles)
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
    softmax: Softmax,
    window: int | None = None,
    scratch: ChunkScratch,
) -> None:
    """out = softmax(scale q K^T + causal mask) V of a chunk of a prompt.

    q, out float32 (T, H, E) at positions start .. start+T-1, all of which are appended already; the
    rest as `ops.attention.api.attention`. Raises CudaOpsError where shapes do not fit.
    """
    _check(q, kv, start, out, window, scratch)
    s, n_rows, stop = scratch, len(q), start + len(q)
    first, heads = max(start - window + 1, 0) if window else 0, s.tiles.heads
    n, unpacked = stop - first, Unpacked(s.keys, s.values, first, s.n_ctx)
    unpack_kernel[(triton.cdiv(n, TOKENS), heads)](
        kv, unpacked, n, T=s.tiles, TOKENS=TOKENS,
        num_warps=16 if s.tiles.layout.padded > 128 else 4,
    )  # fmt: skip
    if softmax.softcap == 0.0 and (window is None or stop <= window):
        rows = q.transpose(0, 1)[None].half()
        keys, values = (x[None, :, :n] for x in (s.keys, s.values))
        mask = causal_lower_right(n_rows, n)
        attended = scaled_dot_product_attention(
            rows, keys, values, mask, scale=softmax.scale, enable_gqa=s.n_heads != heads
        )
        out.copy_(attended[0].transpose(0, 1))
        return
    constants = _chunk_constants(s.n_heads, s.tiles, softmax.softcap != 0.0, s.old)
    chunk_kernel[(triton.cdiv(n_rows, constants["ROWS"]), s.n_heads)](
        Rows(q, out, start, n_rows), unpacked, window or NO_WINDOW, *softmax.scoring, **constants
    )
