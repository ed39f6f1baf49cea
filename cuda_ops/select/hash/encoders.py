"""Signatures of a token's queries and of stored keys, in one launch: the signs of small networks.

    y = W_n silu(… silu(W_1 x + b_1) …) + b_n,   bit i of the signature = (y_i > 0)

As `ops.select.signatures.encode`: each output is summed in the order of the inputs by fused
multiplications, so SimHash has the bits that `ops` gives, on a GPU; Triton's interpreter rounds
products, too. Behind SiLU, whose exponential is rounded otherwise, a bit may differ where y_i is
within a few roundings of 0.
"""

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from ....ops.attention.layout import SEGMENT, TileLayout
from ....ops.select import Network
from ...attention.tiles import (
    check_floats,
    check_place,
    check_tiles,
    rotation_constants,
    stored_keys,
    tile_constants,
)
from ...errors import CudaOpsError
from ..dense import dense, put

KEYS = 16  # of one KV head that a program encodes; 1 beside a token's queries


@triton.jit
def _silu(y):
    return y / (1.0 + tl.exp(-y))


@triton.jit
def encode_kernel(
    q, kv, start, q_networks, k_networks, signs, words, work, n_tokens, H: tl.constexpr,
    PER_Q: tl.constexpr, PER_K: tl.constexpr, N_WEIGHTS: tl.constexpr, LAYERS: tl.constexpr,
    HIDDEN: tl.constexpr, BITS: tl.constexpr, WIDEST: tl.constexpr, ROWS: tl.constexpr,
    J: tl.constexpr, TILE_BYTES: tl.constexpr, K_ROW: tl.constexpr, SCALES_AT: tl.constexpr,
    SCALES_ROW: tl.constexpr, K_KIND: tl.constexpr, STORED: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCKS: tl.constexpr, ROTATION: tl.constexpr, LOG: tl.constexpr, FACTOR: tl.constexpr,
):  # fmt: skip
    """Program p < H: query head p into signs (H,). Others: ROWS keys of a KV head into words."""
    p = tl.program_id(0)
    j, block = (p - H) % J, (p - H) // J
    i = block * ROWS + tl.arange(0, ROWS)
    token = tl.load(start) + tl.minimum(i, n_tokens - 1)
    line = work + (p * ROWS + tl.arange(0, ROWS)) * WIDEST
    e = tl.arange(0, 32 * BLOCKS)
    if p < H:
        x = tl.load(q + p * HEAD_DIM + e, e < HEAD_DIM, 0.0)[None, :]
        x = tl.broadcast_to(x, (ROWS, 32 * BLOCKS))
        weights = q_networks + p // PER_Q * N_WEIGHTS
    else:
        x = stored_keys(
            kv, token, j, J, TILE_BYTES, K_ROW, SCALES_AT, SCALES_ROW, K_KIND, STORED, BLOCKS,
            ROTATION, LOG, FACTOR,
        )  # fmt: skip
        weights = k_networks + j // PER_K * N_WEIGHTS
    put(line, x, HEAD_DIM)
    if LAYERS > 1:
        put(line, _silu(dense(line, ROWS, weights, HEAD_DIM, HIDDEN)), HIDDEN)
        weights += (HEAD_DIM + 1) * HIDDEN
        for _ in tl.static_range(LAYERS - 2):
            put(line, _silu(dense(line, ROWS, weights, HIDDEN, HIDDEN)), HIDDEN)
            weights += (HIDDEN + 1) * HIDDEN
        y = dense(line, ROWS, weights, HIDDEN, BITS)
    else:
        y = dense(line, ROWS, weights, HEAD_DIM, BITS)
    bit = (y > 0.0).to(signs.dtype.element_ty) << tl.arange(0, BITS)[None, :]
    word = tl.sum(bit, 1).to(signs.dtype.element_ty)
    if p < H:
        tl.store(signs + p + tl.zeros((ROWS,), tl.int32), word)
    else:
        at = ((token // 1024).to(tl.int64) * J + j) * 1024 + token % 1024
        tl.store(words + at, word, i < n_tokens)


class Encoders:
    """The networks of one layer on a GPU: for queries and for keys, one for all heads or one each.

    Raises CudaOpsError for networks of other widths than (E, hidden, …, hidden, bits).
    """

    def __init__(
        self, queries: Sequence[Network], keys: Sequence[Network], device: torch.device
    ) -> None:
        self.widths = widths = queries[0].widths
        if any(n.widths != widths for n in (*queries, *keys)) or len({*widths[1:-1]}) > 1:
            raise CudaOpsError(f"encoders: layers of {widths}, expected equal hidden widths")
        self.bits = widths[-1]
        self.word = torch.int32 if self.bits == 32 else torch.int64
        self.queries, self.keys = (
            torch.tensor(np.stack([n.weights for n in part]), device=device)
            for part in (queries, keys)
        )


class EncodeScratch:
    """Memory for encoding one token's queries and its key, or up to `max_rows` keys."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, layout: TileLayout, max_rows: int, encoders: Encoders
    ) -> None:
        self.n_heads, self.n_kv_heads, self.layout = n_heads, n_kv_heads, layout
        self.max_rows, widths = max_rows, encoders.widths
        self.widest = max(widths[:-1])
        blocks = triton.cdiv(max_rows, KEYS)
        rows = max(n_heads + n_kv_heads, blocks * n_kv_heads * KEYS if max_rows > 1 else 0)
        self.work = torch.zeros((rows, self.widest), device=encoders.queries.device)
        known = tile_constants(layout, n_kv_heads)
        unused = ("V_ROW", "V_AT", "V_SCALE", "V_KIND")
        self.constants = {
            **{name: x for name, x in known.items() if name not in unused},
            **rotation_constants(layout), "LAYERS": len(widths) - 1, "HIDDEN": widths[1],
            "BITS": widths[-1], "WIDEST": self.widest, "N_WEIGHTS": encoders.queries.shape[1],
            "PER_Q": n_heads // len(encoders.queries),
            "PER_K": n_kv_heads // len(encoders.keys),
        }  # fmt: skip


def encode(
    encoders: Encoders,
    q: torch.Tensor | None,
    kv: torch.Tensor,
    start: torch.Tensor,
    n_tokens: int,
    signs: torch.Tensor,
    words: torch.Tensor,
    *,
    scratch: EncodeScratch,
) -> None:
    """Write the signatures of the stored keys start .. start+n_tokens-1, and of one token's q.

    q float32 (1, H, E) into signs (J, G), or None: keys alone; start int32 (1,), on the GPU; words
    (segments, J, 1024); signatures are int32 or int64 by their bits. One launch. As
    `ops.select.encode_keys` and `encode_rows`. Raises CudaOpsError where shapes do not fit.
    """
    s, layout = scratch, scratch.layout
    check_tiles("encoder", kv, layout, s.n_kv_heads)
    check_place("encoder: start", start, 1)
    if encoders.widths[0] != layout.head_dim:
        raise CudaOpsError(
            f"encoder: made for {encoders.widths[0]} inputs, keys have {layout.head_dim}"
        )
    if q is not None:
        check_floats("encoder: q", q, (1, s.n_heads, layout.head_dim))
    if not 1 <= n_tokens <= (s.max_rows if q is None else 1):
        raise CudaOpsError(f"encoder: {n_tokens} tokens, there is room for {s.max_rows} keys")
    word = encoders.word
    if words.shape != (len(kv), s.n_kv_heads, SEGMENT) or words.dtype != word:
        raise CudaOpsError(
            f"encoder: signatures are {words.dtype} {tuple(words.shape)}, expected {word} "
            f"{(len(kv), s.n_kv_heads, SEGMENT)}"
        )
    if signs.numel() != s.n_heads or signs.dtype != word:
        raise CudaOpsError(f"encoder: signs are {signs.dtype} {tuple(signs.shape)}")
    heads, rows = (0 if q is None else s.n_heads), 1 if n_tokens == 1 else KEYS
    encode_kernel[(heads + s.n_kv_heads * triton.cdiv(n_tokens, rows),)](
        kv if q is None else q, kv, start, encoders.queries, encoders.keys, signs, words, s.work,
        n_tokens, H=heads, ROWS=rows, **s.constants, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
