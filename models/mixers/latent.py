"""Latent attention: a token's key and value are one compressed row, which all heads share.

    row   = [rope(rotated part) | norm(compressed part)] of attn_kv_a_mqa · x       stored once
    q_h   = [rope(rotated part) | attn_k_b_h · other part] of head h's query
    out_h = attn_v_b_h · (softmax(scale q_h · rows) · compressed parts)

To a KV cache it is attention with one KV head. Matrices of heads multiply rows that lie head by
head: [head][token][number]. Source: DeepSeek-V2 (arXiv 2405.04434) section 2.1, as llama.cpp has
it: `src/models/deepseek2.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ops.device import Activations, Array
from ...ops.pointwise.parts import copy_part
from ..attention import Attention
from ..config import ModelConfig
from ..config.layers import AttentionConfig, LatentConfig
from ..loader import Linear, Loader
from ..workspace import Rows, Widths
from .base import Mixer


@dataclass(frozen=True)
class LatentWeights:
    """The tensors of one layer's latent attention."""

    q_a: Linear | None
    """None: queries are not compressed."""
    q_a_norm: Array | None
    q: Linear
    """`attn_q_b`, or `attn_q`."""
    kv_a: Linear
    kv_a_norm: Array
    k_b: tuple[Linear, ...]
    """Of each head, from its key to the compressed part."""
    v_b: tuple[Linear, ...]
    """Of each head, from the compressed part to its value."""
    stacked: bool
    """Whether the file has a stack of each of them, not one matrix of both."""
    output: Linear

    @staticmethod
    def load(
        loader: Loader, prefix: str, config: ModelConfig, layer: AttentionConfig
    ) -> LatentWeights:
        """Read `{prefix}.attn_q` (or `attn_q_a`, `attn_q_b`), `attn_kv_a_mqa`, `attn_k_b`,
        `attn_v_b` (or both from `attn_kv_b`), `attn_output` and norms."""
        (latent, n_rot), n_embd = _parts(layer), config.n_embd
        n_q = layer.n_heads * (latent.plain_dim + n_rot)
        q_a = q_a_norm = None
        if latent.q_rank and f"{prefix}.attn_q.weight" not in loader:
            q_a = loader.linear(f"{prefix}.attn_q_a", latent.q_rank, n_embd)
            q_a_norm = loader.vector(f"{prefix}.attn_q_a_norm.weight", latent.q_rank)
            q = loader.linear(f"{prefix}.attn_q_b", n_q, latent.q_rank)
        else:
            q = loader.linear(f"{prefix}.attn_q", n_q, n_embd)
        k_b, v_b = _of_heads(loader, prefix, layer.n_heads, latent)
        return LatentWeights(
            q_a,
            q_a_norm,
            q,
            kv_a=loader.linear(f"{prefix}.attn_kv_a_mqa", layer.head_dim, n_embd),
            kv_a_norm=loader.vector(f"{prefix}.attn_kv_a_norm.weight", latent.rank),
            k_b=k_b,
            v_b=v_b,
            stacked=f"{prefix}.attn_k_b.weight" in loader,
            output=loader.linear(f"{prefix}.attn_output", n_embd, layer.n_heads * latent.value_dim),
        )


def _parts(layer: AttentionConfig) -> tuple[LatentConfig, int]:
    """How the layer compresses, and the numbers of a row that rotate."""
    assert layer.latent is not None and layer.rope is not None
    return layer.latent, layer.rope.n_rot


def _of_heads(
    loader: Loader, prefix: str, n_heads: int, latent: LatentConfig
) -> tuple[tuple[Linear, ...], tuple[Linear, ...]]:
    """The matrices of heads that lead to the compressed part, and from it."""
    plain_dim, value_dim, rank = latent.plain_dim, latent.value_dim, latent.rank
    if f"{prefix}.attn_kv_b.weight" not in loader:
        k_b = loader.stack(f"{prefix}.attn_k_b", (n_heads, rank, plain_dim))
        return k_b, loader.stack(f"{prefix}.attn_v_b", (n_heads, value_dim, rank))
    sizes = [plain_dim, value_dim] * n_heads
    parts = loader.split(f"{prefix}.attn_kv_b", sizes, rank, turned=range(0, len(sizes), 2))
    return parts[::2], parts[1::2]


class LatentMixer(Mixer[LatentWeights, AttentionConfig]):
    """The latent attention of one layer."""

    def _prepare(self) -> None:
        layer, work = self._layer, self._work
        self._latent, self._n_rot = _parts(layer)
        self._n_heads, self._row = layer.n_heads, layer.head_dim
        self._q_a_in = work.input("q_a") if self._weights.q_a is not None else None
        self._narrow_in, self._wide_in = work.input("plain"), work.input("compressed")
        self._joined_in = work.input("joined")

    @staticmethod
    def widths(config: ModelConfig, layer: AttentionConfig) -> Widths:
        """See `Mixer`."""
        (latent, n_rot), n_heads = _parts(layer), layer.n_heads
        of_all, joined = n_heads * layer.head_dim, n_heads * latent.value_dim
        rows = {
            "q_a": latent.q_rank,
            "q_heads": n_heads * (latent.plain_dim + n_rot),
            "narrow": n_heads * max(latent.plain_dim, latent.value_dim),
            "wide": n_heads * latent.rank,
            "joined": joined,
            "kv_a": layer.head_dim,
            "compressed": latent.rank,
            "q": of_all,
            "k": layer.head_dim,
            "mixed": of_all,
        }
        inputs = {"plain": latent.plain_dim, "compressed": latent.rank, "joined": joined}
        return Widths(rows, inputs | ({"q_a": latent.q_rank} if latent.q_rank else {}))

    def project(self, source: Activations, b: Rows, outputs: Rows, angles: list[Array]) -> None:
        """The stored row of all rows, the queries of `outputs`."""
        assert self._rotation is not None
        work, rope, table = self._work, self._config.architecture.rope, angles[self._rotation]
        work.linear(source, self._weights.kv_a, b.array("kv_a", self._row))
        self._put_rows(b)
        n, n_out = (len(rows.ids) for rows in (b, outputs))
        self._put_queries(source if outputs is b else source.set(outputs.normed), outputs)
        q, k = outputs.array("q", self._n_heads, self._row), b.array("k", 1, self._row)
        if outputs is b:
            work.device.pointwise.rope(q, k, table, rope)
        else:
            work.device.pointwise.rope(
                q, outputs.array("k", 0, self._row), table[n - n_out :], rope
            )
            work.device.pointwise.rope(k, b.array("q", 0, self._row), table, rope)

    def _put_rows(self, b: Rows) -> None:
        """k = [rotated part | norm(compressed part)] of `kv_a`, not rotated yet."""
        n_rot, rank, weights = self._n_rot, self._latent.rank, self._weights
        kv_a, compressed = b.array("kv_a", 1, self._row), b.array("compressed", 1, rank)
        k, rows = b.array("k", 1, self._row), b.array("compressed", rank)
        copy_part(kv_a, 0, compressed, 0, rank)
        self._work.device.pointwise.rms_norm(rows, weights.kv_a_norm, self._config.norm_eps, rows)
        copy_part(compressed, 0, k, n_rot, rank)
        copy_part(kv_a, rank, k, 0, n_rot)

    def _put_queries(self, source: Activations, b: Rows) -> None:
        """q = [rotated part | attn_k_b · other part] of each head, not rotated yet."""
        weights, work, latent = self._weights, self._work, self._latent
        if weights.q_a is not None:
            assert weights.q_a_norm is not None and self._q_a_in is not None
            q_a, eps = b.array("q_a", latent.q_rank), self._config.norm_eps
            work.linear(source, weights.q_a, q_a)
            work.device.pointwise.rms_norm(q_a, weights.q_a_norm, eps, q_a)
            # `source` has to hold the normed rows of `b` afterwards.
            source = self._q_a_in.set(q_a)
        n_heads, key_dim = self._n_heads, latent.plain_dim + self._n_rot
        work.linear(source, weights.q, b.array("q_heads", n_heads * key_dim))
        heads, q = b.array("q_heads", n_heads, key_dim), b.array("q", n_heads, self._row)
        plain = self._by_head(b, "narrow", latent.plain_dim)
        wide = self._by_head(b, "wide", latent.rank)
        copy_part(heads, 0, plain, 0, latent.plain_dim, swap=True)
        copy_part(heads, latent.plain_dim, q, 0, self._n_rot)
        work.heads(self._narrow_in, weights.k_b, plain, wide, stack=weights.stacked)
        copy_part(wide, 0, q, self._n_rot, latent.rank, swap=True)

    def _by_head(self, b: Rows, name: str, width: int) -> Array:
        """float32 (H, n, width): the memory of the rows, head by head."""
        return b.array(name, self._n_heads * width).reshape(self._n_heads, len(b.ids), width)

    def mix(self, attention: Attention, tokens: Rows, outputs: Rows) -> None:
        """Append the rows, and attend to them: as values, all of each row."""
        k = tokens.array("k", 1, self._row)
        q, mixed = (outputs.array(name, self._n_heads, self._row) for name in ("q", "mixed"))
        attention(self._number, q, k, k, mixed)

    def output(self, b: Rows, out: Array) -> None:
        """attn_v_b of each head's part of what was mixed, and the output projection."""
        weights, work, latent = self._weights, self._work, self._latent
        mixed = b.array("mixed", self._n_heads, self._row)
        wide = self._by_head(b, "wide", latent.rank)
        narrow = self._by_head(b, "narrow", latent.value_dim)
        joined = b.array("joined", self._n_heads, latent.value_dim)
        copy_part(mixed, self._n_rot, wide, 0, latent.rank, swap=True)
        work.heads(self._wide_in, weights.v_b, wide, narrow, stack=weights.stacked)
        copy_part(narrow, 0, joined, 0, latent.value_dim, swap=True)
        rows = b.array("joined", self._n_heads * latent.value_dim)
        work.linear(self._joined_in.set(rows), weights.output, out)
