"""Latent attention: DeepSeek V2, V3 and R1, and GLM 4.7 Flash, which took it."""

from __future__ import annotations

import re

from gguf import ExpertGatingFuncType, GGUFWriter

from ...errors import ConvertError
from ..config import Config
from ..metadata.keys import add_dense
from ..views import View, Views, part, reshaped, transposed
from .experts import add_experts, split

_GATINGS = {"sigmoid": ExpertGatingFuncType.SIGMOID, "softmax": ExpertGatingFuncType.SOFTMAX}
_KV_B = re.compile(r"model\.layers\.(\d+)\.self_attn\.kv_b_proj\.weight")


def add_keys(writer: GGUFWriter, config: Config, scores: str) -> None:
    """`deepseek2.*`; scores: tokens choose experts by a "softmax" or by "sigmoid"s."""
    add_dense(writer, config)
    writer.add_head_count_kv(1)
    writer.add_vocab_size(config.integer("vocab_size"))
    plain_dim, n_rot = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    rank = config.integer("kv_lora_rank")
    if q_rank := config.optional_integer("q_lora_rank"):
        writer.add_q_lora_rank(q_rank)
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + n_rot)
    writer.add_value_length(rank)
    writer.add_key_length_mla(plain_dim + n_rot)
    writer.add_value_length_mla(config.integer("v_head_dim"))
    writer.add_rope_dimension_count(n_rot)
    _add_experts(writer, config, scores)


def _add_experts(writer: GGUFWriter, config: Config, scores: str) -> None:
    n_dense = config.integer("first_k_dense_replace")
    kinds = ["dense"] * n_dense + ["sparse"] * (config.n_layers - n_dense)
    if config.get("mlp_layer_types") not in (None, kinds):
        expected = f"{n_dense} dense layers, then sparse ones"
        raise config.refused("mlp_layer_types", expected, writer.arch)
    n_groups = config.optional_integer("n_group")
    if n_groups > 1 and config.get("topk_method") == "group_limited_greedy":
        expected = "noaux_tc: readers choose groups by their two best experts"
        raise config.refused("topk_method", expected, writer.arch)
    add_experts(writer, config, scores=scores)
    if n_groups:
        writer.add_expert_group_count(n_groups)
        writer.add_expert_group_used_count(config.integer("topk_group"))
    writer.add_leading_dense_block_count(n_dense)
    writer.add_expert_feed_forward_length(config.integer("moe_intermediate_size"))
    writer.add_expert_shared_count(config.optional_integer("n_shared_experts"))
    writer.add_expert_gating_func(_GATINGS[scores])
    writer.add_expert_weights_scale(config.number("routed_scaling_factor"))
    if config.flag("norm_topk_prob"):
        writer.add_expert_weights_norm(True)


def tensors(config: Config, views: Views) -> dict[str, View]:
    """Experts as separate tensors, and the matrices of heads: `kv_b_proj` has the rows of each
    head's key, which are transposed, and then those of its value."""
    made: dict[str, View] = {}
    plain_dim, value_dim = config.integer("qk_nope_head_dim"), config.integer("v_head_dim")
    shape = config.n_heads, plain_dim + value_dim, config.integer("kv_lora_rank")
    for name, view in split(config, views).items():
        if (match := _KV_B.fullmatch(name)) is None:
            made[name] = view
            continue
        if view.shape != (shape[0] * shape[1], shape[2]):
            raise ConvertError(
                f"tensor {name} has shape {view.shape}, expected {(shape[0] * shape[1], shape[2])}"
            )
        heads = reshaped(view, *shape)
        made[f"blk.{match[1]}.attn_k_b.weight"] = transposed(part(heads, slice(plain_dim)))
        made[f"blk.{match[1]}.attn_v_b.weight"] = part(heads, slice(plain_dim, None))
    return made
