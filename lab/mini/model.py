"""The networks in torch: GGUF's `cohere2` and `llama` shapes; modules bear the names of their GGUF
tensors."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GLOBAL_EVERY = 4
"""Every fourth layer is global and without positions: the pattern llama.cpp fixes for cohere2."""


@dataclass(frozen=True)
class MiniConfig:
    """Sizes of a model; `n_heads * head_dim` must be `n_embd`, as llama.cpp's cohere2 assumes.

    cohere2: three layers with a window and rope to one global without positions; attention and
    feed-forward side by side behind one LayerNorm. llama: rope and the whole context in all layers,
    attention before feed-forward, RMSNorm before each.
    """

    architecture: Literal["cohere2", "llama"] = "cohere2"
    n_vocab: int = 4096
    n_layers: int = 8
    n_embd: int = 192
    n_heads: int = 3
    n_kv_heads: int = 3
    head_dim: int = 64
    n_ff: int = 384
    window: int = 128
    rope_theta: float = 10000.0
    logit_scale: float = 0.25
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.n_heads * self.head_dim != self.n_embd:
            raise ValueError(
                f"cohere2 needs n_heads * head_dim = n_embd, "
                f"found {self.n_heads} * {self.head_dim} and {self.n_embd}"
            )
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads must be a multiple of n_kv_heads, "
                f"found {self.n_heads} and {self.n_kv_heads}"
            )

    def is_global(self, layer: int) -> bool:
        """Whether the layer reads the whole context."""
        return self.architecture == "llama" or layer % GLOBAL_EVERY == GLOBAL_EVERY - 1

    def has_rope(self, layer: int) -> bool:
        """Whether the layer knows positions."""
        return self.architecture == "llama" or not self.is_global(layer)

    def new_norm(self) -> nn.Module:
        """A norm over n_embd."""
        if self.architecture == "llama":
            return nn.RMSNorm(self.n_embd, eps=self.norm_eps)
        return nn.LayerNorm(self.n_embd, eps=self.norm_eps, bias=False)


def rope_table(n_tokens: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin of position x frequency, float32 [T, E/2]; frequency i is theta^(-2i/E)."""
    frequency = theta ** (-torch.arange(0, head_dim, 2) / head_dim)
    angle = torch.arange(n_tokens)[:, None] * frequency
    return angle.cos(), angle.sin()


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the pairs (2i, 2i+1) of x [B, H, T, E] by their position's angles [T, E/2]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def window_mask(n_blocks: int, window: int) -> Tensor:
    """bool [n_blocks, W, 2W]: query i of a block sees keys of its own and the previous block at
    distance 0..W-1; the first block has no previous one."""
    query = torch.arange(window)[:, None] + window
    key = torch.arange(2 * window)[None]
    mask = (key <= query) & (query - key < window)
    return torch.stack([mask & (key >= window)] + [mask] * (n_blocks - 1))


def windowed_attention(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Causal attention over the last `window` keys of q, k, v [B, H, T, E], in blocks of W queries
    over 2W keys: cost T * 2W instead of T^2. T is padded to whole blocks."""
    B, H, T, E = q.shape
    if window >= T:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    pad = -T % window
    q, k, v = (F.pad(x, (0, 0, 0, pad)).contiguous() for x in (q, k, v))
    n = (T + pad) // window

    def with_previous(x: Tensor) -> Tensor:
        blocks = x.view(B, H, n, window, E)
        before = F.pad(blocks[:, :, :-1], (0, 0, 0, 0, 1, 0))
        return torch.cat([before, blocks], 3).view(B, H * n, 2 * window, E)

    # Blocks stand where heads do: torch has a fused kernel for four dimensions, none for five.
    out = F.scaled_dot_product_attention(
        q.reshape(B, H * n, window, E),
        with_previous(k),
        with_previous(v),
        attn_mask=window_mask(n, window).to(q.device).repeat(H, 1, 1)[None],
    )
    return out.reshape(B, H, T + pad, E)[:, :, :T]


class Block(nn.Module):
    """One layer: adds attention and feed-forward of the normed x, side by side or in turn."""

    def __init__(self, config: MiniConfig, layer: int) -> None:
        super().__init__()
        D, E = config.n_embd, config.head_dim
        self.config = config
        self.is_global, self.has_rope = config.is_global(layer), config.has_rope(layer)
        self.attn_norm = config.new_norm()
        if config.architecture == "llama":
            self.ffn_norm = config.new_norm()
        self.attn_q = nn.Linear(D, config.n_heads * E, bias=False)
        self.attn_k = nn.Linear(D, config.n_kv_heads * E, bias=False)
        self.attn_v = nn.Linear(D, config.n_kv_heads * E, bias=False)
        self.attn_output = nn.Linear(config.n_heads * E, D, bias=False)
        self.ffn_gate = nn.Linear(D, config.n_ff, bias=False)
        self.ffn_up = nn.Linear(D, config.n_ff, bias=False)
        self.ffn_down = nn.Linear(config.n_ff, D, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.attn_norm(x)
        if self.config.architecture == "llama":
            x = x + self.attend(h, cos, sin)
            return x + self.feed_forward(self.ffn_norm(x))
        return x + self.attend(h, cos, sin) + self.feed_forward(h)

    def attend(self, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attention of normed states [B, T, D], causal, over the window or everything."""
        c = self.config
        B, T, _ = h.shape
        q = self.attn_q(h).view(B, T, c.n_heads, c.head_dim).transpose(1, 2)
        k = self.attn_k(h).view(B, T, c.n_kv_heads, c.head_dim).transpose(1, 2)
        v = self.attn_v(h).view(B, T, c.n_kv_heads, c.head_dim).transpose(1, 2)
        if self.has_rope:
            q, k = rope(q, cos, sin), rope(k, cos, sin)
        group = c.n_heads // c.n_kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if self.is_global:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = windowed_attention(q, k, v, c.window)
        return self.attn_output(mixed.transpose(1, 2).reshape(B, T, -1))  # type: ignore[no-any-return]

    def feed_forward(self, h: Tensor) -> Tensor:
        """SwiGLU of normed states [B, T, D]."""
        return self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))  # type: ignore[no-any-return]


class Mini(nn.Module):
    """The whole model: ids int64 [B, T] -> logits float32 [B, T, V], output tied to the input."""

    def __init__(self, config: MiniConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(config.n_vocab, config.n_embd)
        self.blk = nn.ModuleList(Block(config, i) for i in range(config.n_layers))
        self.output_norm = config.new_norm()
        self._initialise()

    def _initialise(self) -> None:
        """Normal weights of variance 1/fan_in; what a block adds starts at zero; embeddings at
        0.02 / logit_scale, so that the first logits are small and the residual stream is not."""
        for name, p in self.named_parameters():
            if name.endswith(("attn_output.weight", "ffn_down.weight")):
                nn.init.zeros_(p)
            elif name == "token_embd.weight":
                nn.init.normal_(p, std=0.02 / self.config.logit_scale)
            elif p.ndim == 2:
                nn.init.normal_(p, std=p.shape[1] ** -0.5)

    def hidden(self, ids: Tensor) -> Tensor:
        """Normed last hidden states float32 [B, T, D]."""
        table = rope_table(ids.shape[1], self.config.head_dim, self.config.rope_theta)
        cos, sin = (t.to(ids.device) for t in table)
        x = self.token_embd(ids)
        for block in self.blk:
            x = block(x, cos, sin)
        return self.output_norm(x)  # type: ignore[no-any-return]

    def forward(self, ids: Tensor) -> Tensor:
        return self.hidden(ids) * self.config.logit_scale @ self.token_embd.weight.T
