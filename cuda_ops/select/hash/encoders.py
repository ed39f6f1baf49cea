"""Signatures of a token's queries and of stored keys, in one launch: the signs of small networks.

    y = W_n silu(… silu(W_1 x + b_1) …) + b_n,   bit i of the signature = (y_i > 0)

As `ops.select.signatures.encode`: each output is summed in the order of the inputs by fused
multiplications, so SimHash has the bits that `ops` gives, on a GPU; Triton's interpreter rounds
products, too. Behind SiLU, whose exponential is rounded otherwise, a bit may differ where y_i is
within a few roundings of 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from ....ops.attention.layout import TileLayout
from ....ops.select import Network
from ...attention.tiles import Tiles, check_tiles, stored_keys
from ...errors import CudaOpsError
from ...memory import check_floats, check_place, in_memory, telling
from ..dense import dense, put
from .choice import words_of

KEYS = 16  # of one KV head that a program encodes; 1 beside a token's queries
ROWS = 1024
"""Keys that are encoded in one launch."""


@dataclass(frozen=True)
class Shape:
    """What kernels have to know of networks.

    widths: E, hidden, …, hidden, bits; per_query, per_key: heads that share a network.
    """

    widths: tuple[int, ...]
    per_query: int
    per_key: int

    @property
    def layers(self) -> int:
        return len(self.widths) - 1

    @property
    def inputs(self) -> int:
        return self.widths[0]

    @property
    def hidden(self) -> int:
        return self.widths[1]

    @property
    def bits(self) -> int:
        return self.widths[-1]

    @property
    def widest(self) -> int:
        return max(self.widths[:-1])

    @property
    def n_weights(self) -> int:
        return sum((n + 1) * m for n, m in zip(self.widths, self.widths[1:]))


class Weights(NamedTuple):
    """Weights of the networks for queries and for keys, float32 (networks, n_weights)."""

    queries: torch.Tensor
    keys: torch.Tensor


class Stored(NamedTuple):
    """Stored keys from position `start` int32 (1,) on, and their signatures (segments, J, 1024)."""

    kv: torch.Tensor
    start: torch.Tensor
    n_tokens: int
    words: torch.Tensor


@triton.jit
def _silu(y):
    return y / (1.0 + tl.exp(-y))


@triton.jit
def encode_kernel(
    q, signs, stored, weights, work, NETWORKS: tl.constexpr, T: tl.constexpr, H: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Program p < H: query head p into signs (H,). Others: ROWS keys of a KV head into words."""
    p = tl.program_id(0)
    j, block = (p - H) % T.heads, (p - H) // T.heads
    i = block * ROWS + tl.arange(0, ROWS)
    token = tl.load(stored.start) + tl.minimum(i, stored.n_tokens - 1)
    line = work + (p * ROWS + tl.arange(0, ROWS)) * NETWORKS.widest
    WIDTH: tl.constexpr = T.width
    e = tl.arange(0, WIDTH)
    if p < H:
        x = tl.load(q + p * NETWORKS.inputs + e, e < NETWORKS.inputs, 0.0)[None, :]
        x = tl.broadcast_to(x, (ROWS, WIDTH))
        layer = weights.queries + p // NETWORKS.per_query * NETWORKS.n_weights
    else:
        x = stored_keys(stored.kv, token, j, T)
        layer = weights.keys + j // NETWORKS.per_key * NETWORKS.n_weights
    put(line, x, NETWORKS.inputs)
    if NETWORKS.layers > 1:
        y = dense(line, ROWS, layer, NETWORKS.inputs, NETWORKS.hidden)
        put(line, _silu(y), NETWORKS.hidden)
        layer += (NETWORKS.inputs + 1) * NETWORKS.hidden
        for _ in tl.static_range(NETWORKS.layers - 2):
            y = dense(line, ROWS, layer, NETWORKS.hidden, NETWORKS.hidden)
            put(line, _silu(y), NETWORKS.hidden)
            layer += (NETWORKS.hidden + 1) * NETWORKS.hidden
        y = dense(line, ROWS, layer, NETWORKS.hidden, NETWORKS.bits)
    else:
        y = dense(line, ROWS, layer, NETWORKS.inputs, NETWORKS.bits)
    bit = (y > 0.0).to(tl.uint64) << tl.arange(0, NETWORKS.bits)[None, :].to(tl.uint64)
    word = tl.sum(bit, 1)
    if p < H:
        tl.store(signs + p + tl.zeros((ROWS,), tl.int32), word)
    else:
        at = ((token // 1024).to(tl.int64) * T.heads + j) * 1024 + token % 1024
        tl.store(stored.words + at, word.to(stored.words.dtype.element_ty), i < stored.n_tokens)


class Encoders:
    """The networks of one layer: as `LayerNetworks` of `runtime`, on a GPU.

    work float32 (rows, width): of all layers. Raises CudaOpsError for networks of other widths than
    (E, hidden, …, hidden, bits).
    """

    def __init__(
        self,
        queries: Sequence[Network],
        keys: Sequence[Network],
        n_heads: int,
        tiles: Tiles,
        work: torch.Tensor,
    ) -> None:
        widths = queries[0].widths
        if any(n.widths != widths for n in (*queries, *keys)) or len({*widths[1:-1]}) > 1:
            raise CudaOpsError(f"encoders: layers of {widths}, expected equal hidden widths")
        if widths[0] != tiles.layout.head_dim:
            raise CudaOpsError(
                f"encoders: made for {widths[0]} inputs, keys have {tiles.layout.head_dim}"
            )
        self.shape = Shape(widths, n_heads // len(queries), tiles.heads // len(keys))
        self.n_heads, self.tiles, self.work = n_heads, tiles, work
        self._no_keys = torch.empty(0, dtype=torch.uint8, device=work.device)
        self._no_signs = torch.empty(0, dtype=torch.uint64, device=work.device)
        self.weights = Weights(*(
            torch.tensor(np.stack([n.weights for n in networks]), device=work.device)
            for networks in (queries, keys)
        ))  # fmt: skip

    def sign_queries(self, q: torch.Tensor, out: torch.Tensor) -> None:
        """Signatures of q float32 (H, E) into out uint64 (H,)."""
        no_keys = Stored(self._no_keys, in_memory(q.device, 0), 0, self._no_signs)
        self._encode(q, out, no_keys)

    def sign_keys(self, layer: Any, column: Any, first: int, stop: int) -> None:
        """Signatures of the layer's keys first … stop - 1, as stored, into the column."""
        kv, words = self._places(layer, column)
        for done in range(0, stop - first, ROWS):
            start = in_memory(kv.device, first + done if done else first)
            n_tokens = min(ROWS, stop - first - done)
            self._encode(self.work, self._no_signs, Stored(kv, start, n_tokens, words))

    def sign_token(
        self, layer: Any, column: Any, span: Sequence[int], q: torch.Tensor, out: torch.Tensor
    ) -> None:
        """`sign_keys` of the token of that span, and `sign_queries` of its queries: one launch."""
        kv, words = self._places(layer, column)
        self._encode(q, out, Stored(kv, in_memory(kv.device, span[0]), 1, words))

    def _places(self, layer: Any, column: Any) -> tuple[torch.Tensor, torch.Tensor]:
        kv, items = layer.store.segments(layer.index), column.segments(layer.index)
        check_tiles("encoders", kv, self.tiles)
        return kv, words_of("encoders", items, self.shape.bits, self.tiles.heads)

    def _encode(self, q: torch.Tensor, out: torch.Tensor, stored: Stored) -> None:
        """Encode the queries, if `out` has room for any, and the keys."""
        s, n_tokens, heads = self.shape, stored.n_tokens, len(out)
        if heads:
            check_floats("encoders: q", q, (self.n_heads, s.inputs))
            if heads != self.n_heads or out.dtype != torch.uint64:
                raise CudaOpsError(f"encoders: signatures are {out.dtype} {tuple(out.shape)}")
        check_place("encoders: start", stored.start, 1)
        rows = KEYS if n_tokens > 1 else 1
        with telling("computing signatures"):
            encode_kernel[(heads + self.tiles.heads * triton.cdiv(n_tokens, rows),)](
                q, out, stored, self.weights, self.work, NETWORKS=s, T=self.tiles, H=heads,
                ROWS=rows, num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip


def encoders_of(
    layers: Mapping[int, Any],
    n_heads: int,
    n_kv_heads: int,
    layout: TileLayout,
    device: torch.device,
) -> dict[int, Encoders]:
    """`LayerNetworks` of layers on a GPU; all layers share the memory that encoding needs."""
    networks = [network for layer in layers.values() for network in layer.queries]
    widest = max((max(network.widths[:-1]) for network in networks), default=0)
    rows = max(n_heads + n_kv_heads, ROWS * n_kv_heads)
    work = torch.zeros((rows, widest), device=device)
    tiles = Tiles(layout, n_kv_heads)
    return {
        i: Encoders(layer.queries, layer.keys, n_heads, tiles, work) for i, layer in layers.items()
    }
