"""A text encoder's tensors, checked against its configuration.

Of quantised ones, three matrices of a layer multiply unrounded activations: of Q8_0, rounding to 8
bits costs vectors more than the weights' own rounding does, and most of that in these three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...jit.arena import Arena
from ...ops.arrays import F32
from ...ops.device import Device, Weight
from ...ops.experts import ExpertWeights
from ..config.text_encoders import TextEncoderConfig
from ..errors import ModelError
from ..feed_forwards.dense import DenseWeights
from ..feed_forwards.experts import ExpertsWeights
from ..loader import Linear, Loader, Norm
from ..tensors import TensorLike


@dataclass(frozen=True)
class LayerWeights:
    """The tensors of one layer; None: the layer has none."""

    attn_norm: Norm | None
    q: Linear
    k: Linear
    v: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    attn_output: Linear
    attn_output_norm: Norm | None
    ffn_norm: Norm | None
    feed_forward: DenseWeights | ExpertsWeights
    layer_output_norm: Norm | None


@dataclass(frozen=True)
class Classifier:
    """What makes scores of a pair's first hidden state: output(tanh(dense x))."""

    dense: Linear | None
    output: Linear | None


@dataclass(frozen=True)
class TextEncoderWeights:
    """All tensors of a text encoder, in the memory of a device."""

    device: Device
    token_embd: Weight
    position_embd: F32 | None
    """float32 (n_ctx, D) on the host."""
    token_types: F32 | None
    """float32 (types, D) on the host."""
    token_embd_norm: Norm | None
    layers: tuple[LayerWeights, ...]
    output_norm: Norm | None
    classifier: Classifier | None
    dense: tuple[Linear, ...]
    """What makes a vector of the pooled one, one after the other."""

    @staticmethod
    def load(
        tensors: Mapping[str, TensorLike], config: TextEncoderConfig, arena: Arena, device: Device
    ) -> TextEncoderWeights:
        """Check every tensor's name and shape, and prepare the matrices for a device.

        Raises a `ModelError` that names a tensor which is missing, has another shape, or is unknown
        to the architecture.
        """
        if not tensors:
            raise ModelError(
                "cannot load the model: the file holds no tensors, only metadata; expected a "
                "model's weights"
            )
        loader = Loader(tensors, arena, device)
        width = config.n_heads * config.head_dim
        for index in range(config.n_layers):  # refused before a matrix takes memory
            loader.tensor(f"blk.{index}.attn_output.weight", (config.n_embd, width))
        by_table = config.architecture.positions == "table"
        n_ctx, n_embd = config.n_ctx_train, config.n_embd
        weights = TextEncoderWeights(
            device=device,
            token_embd=loader.matrix("token_embd.weight", (config.n_vocab, n_embd), products=False),
            position_embd=_rows(loader, "position_embd", (n_ctx, n_embd)) if by_table else None,
            token_types=_token_types(loader, config),
            token_embd_norm=(
                None if config.architecture.gemma else loader.norm("token_embd_norm", n_embd)
            ),
            layers=tuple(_layer(loader, config, index) for index in range(config.n_layers)),
            output_norm=(
                loader.norm("output_norm", n_embd) if config.architecture.pre_norms else None
            ),
            classifier=_classifier(loader, config),
            dense=_dense(loader, config),
        )
        loader.check_used(config.architecture.name)
        return weights


def _rows(loader: Loader, name: str, shape: tuple[int, int]) -> F32:
    rows: F32 = loader.device.get(loader.rows(f"{name}.weight", shape))
    return rows


def _token_types(loader: Loader, config: TextEncoderConfig) -> F32 | None:
    if not config.architecture.token_types or "token_types.weight" not in loader:
        return None
    return _rows(loader, "token_types", (config.n_token_types, config.n_embd))


def _layer(loader: Loader, config: TextEncoderConfig, index: int) -> LayerWeights:
    n_embd, prefix, pre = config.n_embd, f"blk.{index}", config.architecture.pre_norms
    gemma, head_dim = config.architecture.gemma, config.head_dim
    n_q, n_kv = config.n_heads * head_dim, config.n_kv_heads * head_dim

    def norm(name: str, present: bool, n: int = n_embd) -> Norm | None:
        return loader.norm(f"{prefix}.{name}", n) if present else None

    if f"{prefix}.attn_qkv.weight" in loader:
        q, k, v = loader.split(f"{prefix}.attn_qkv", [n_q, n_kv, n_kv], n_embd)
    else:
        q = loader.linear(f"{prefix}.attn_q", n_q, n_embd)
        k = loader.linear(f"{prefix}.attn_k", n_kv, n_embd)
        v = loader.unrounded(f"{prefix}.attn_v", n_kv, n_embd)
    if config.architecture.positions == "table":
        # The same for all keys of a query, which a softmax does not see; rotations would turn it.
        k = replace(k, bias=None)
    return LayerWeights(
        # ModernBERT's first layer reads what the norm of the embeddings gave.
        attn_norm=norm("attn_norm", pre and (index > 0 or f"{prefix}.attn_norm.weight" in loader)),
        q=q,
        k=k,
        v=v,
        q_norm=norm("attn_q_norm", gemma, head_dim),
        k_norm=norm("attn_k_norm", gemma, head_dim),
        attn_output=loader.unrounded(f"{prefix}.attn_output", n_embd, n_q),
        attn_output_norm=norm(
            "post_attention_norm" if gemma else "attn_output_norm", gemma or not pre
        ),
        ffn_norm=norm("ffn_norm", pre),
        feed_forward=_feed_forward(loader, config, index),
        layer_output_norm=norm("post_ffw_norm" if gemma else "layer_output_norm", gemma or not pre),
    )


def _feed_forward(
    loader: Loader, config: TextEncoderConfig, index: int
) -> DenseWeights | ExpertsWeights:
    n_embd, n_ff, prefix = config.n_embd, config.n_ff, f"blk.{index}"
    if config.experts is not None and config.routed[index]:
        n = config.experts.routing.n_experts
        return ExpertsWeights(
            config.experts,
            loader.linear(f"{prefix}.ffn_gate_inp", n, n_embd),
            ExpertWeights(
                config.experts.routing,
                "ungated-gelu",
                gate=None,
                up=loader.experts(f"{prefix}.ffn_up_exps", (n, n_ff, n_embd)),
                down=loader.experts(f"{prefix}.ffn_down_exps", (n, n_embd, n_ff)),
            ),
            bias=loader.optional(f"{prefix}.ffn_exps.bias", n_embd),
        )
    gate: Linear | None = None
    if config.architecture.gate == "ffn_up":
        gate, up = loader.split(f"{prefix}.ffn_up", [n_ff, n_ff], n_embd)
    else:
        if config.architecture.gate == "ffn_gate":
            gate = loader.linear(f"{prefix}.ffn_gate", n_ff, n_embd)
        up = loader.unrounded(f"{prefix}.ffn_up", n_ff, n_embd)
    return DenseWeights(n_ff, gate, up, loader.linear(f"{prefix}.ffn_down", n_embd, n_ff))


def _classifier(loader: Loader, config: TextEncoderConfig) -> Classifier | None:
    has_dense, has_output = ("cls.weight" in loader), ("cls.output.weight" in loader)
    if not has_dense and not has_output:
        return None
    n_embd, n_labels = config.n_embd, config.n_labels
    return Classifier(
        loader.linear("cls", n_embd if has_output else n_labels, n_embd) if has_dense else None,
        loader.linear("cls.output", n_labels, n_embd) if has_output else None,
    )


def _dense(loader: Loader, config: TextEncoderConfig) -> tuple[Linear, ...]:
    if not config.architecture.gemma or not ("dense_2.weight" in loader or config.n_dense):
        return ()
    return (
        loader.unrounded("dense_2", config.n_dense, config.n_embd),
        loader.unrounded("dense_3", config.n_embd, config.n_dense),
    )
