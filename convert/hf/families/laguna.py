"""laguna: query heads by layer, gated attention, windows that rotate otherwise, experts."""

from __future__ import annotations

from gguf import ExpertGatingFuncType, GGUFWriter

from ....models.config.architectures import ARCHITECTURES
from ...errors import ConvertError
from ..architecture import HFArchitecture
from ..config import Config
from ..files.jsons import brief
from ..metadata.keys import add_head_dim, add_sizes
from ..metadata.layers import add_windows, windowed_layers
from ..metadata.rope import add_rope
from .experts import add_experts, split


def add_keys(writer: GGUFWriter, config: Config) -> None:
    """`laguna.*`."""
    add_sizes(writer, config)
    writer.add_head_count(_heads(config))
    add_rope(writer, config)
    writer.add_rope_dimension_count(config.rotated_dims)
    local = config.rope.get("local", {})
    writer.add_rope_dimension_count_swa(config.share_of_head(local.get("partial_rotary_factor")))
    writer.add_layer_norm_rms_eps(config.number("rms_norm_eps"))
    add_head_dim(writer, config)
    writer.add_vocab_size(config.integer("vocab_size"))
    _add_windows(writer, config)
    n_dense = _dense_layers(config)
    add_experts(writer, config, scores="sigmoid", n_dense=n_dense)
    writer.add_leading_dense_block_count(n_dense)
    writer.add_expert_feed_forward_length(config.integer("moe_intermediate_size"))
    shared = config.integer("shared_expert_intermediate_size")
    writer.add_expert_shared_feed_forward_length(shared)
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config.number("moe_routed_scaling_factor"))
    writer.add_expert_weights_norm(True)


def _heads(config: Config) -> list[int]:
    """Query heads of each layer."""
    heads = config.get("num_attention_heads_per_layer") or [config.n_heads] * config.n_layers
    good = isinstance(heads, list) and len(heads) == config.n_layers
    if not good or not all(type(n) is int and n > 0 and n % config.n_kv_heads == 0 for n in heads):
        raise ConvertError(
            f"config.json: num_attention_heads_per_layer is {brief(heads)}, expected a multiple of "
            f"{config.n_kv_heads} for each of {config.n_layers} layers"
        )
    return heads


def _add_windows(writer: GGUFWriter, config: Config) -> None:
    windowing = ARCHITECTURES["laguna"].windowing
    assert windowing is not None
    windowed = [False] * config.n_layers
    if config.get("layer_types") is not None:
        windowed = windowed_layers(config, windowing.period)
    if not any(windowed):
        return
    usual = [i % windowing.period != 0 for i in range(config.n_layers)]
    add_windows(writer, config, windowed, usual)


def _dense_layers(config: Config) -> int:
    """How many layers at the beginning have no experts."""
    kinds = config.get("mlp_layer_types") or ["dense", *["sparse"] * (config.n_layers - 1)]
    n = kinds.count("dense") if isinstance(kinds, list) else 0
    if kinds != ["dense"] * n + ["sparse"] * (config.n_layers - n):
        raise ConvertError(
            f"config.json: mlp_layer_types is {brief(kinds)}, expected dense layers, then sparse "
            f"ones, {config.n_layers} in all"
        )
    return n


ENTRY = HFArchitecture(
    "laguna",
    add_keys,
    renames=(
        (r"model\.layers\.(\d+)\.self_attn\.g_proj\.weight", r"blk.\1.attn_gate.weight"),
        # Some shards have the bias of a choice beside the experts, not in the router.
        (r"(.+)\.experts\.(e_score_correction.*)", r"\1.gate.\2"),
    ),
    rewrite=split,
    names="dots1",
    fixed={
        "attention_bias": False,
        "moe_apply_router_weight_on_input": False,
        "moe_router_logit_softcapping": 0,
        "swa_attention_sink_enabled": False,
    },
)
