"""Tiny models with latent attention (`deepseek2`), and the tensors of it."""

from __future__ import annotations

from typing import Any

from .case import YARN, YARN_ATTN, Tiny

GAINS = {"attn_kv_a_mqa": 1.7, "attn_q_b": 1.7, "attn_kv_b": 1.7}

Shapes = dict[str, tuple[int, ...]]


def keys(
    rank: int, n_rot: int, plain_dim: int, value_dim: int, q_rank: int = 0, fused: int = 0
) -> dict[str, Any]:
    """Keys of heads of `plain_dim` + `n_rot` numbers; fused: those of an old file, of this many
    heads."""
    values = {
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": n_rot,
        "expert_shared_count": 0,
        "expert_feed_forward_length": 40,
    }
    if q_rank:
        values["attention.q_lora_rank"] = q_rank
    if fused:
        return values | {
            "attention.head_count_kv": fused,
            "attention.key_length": plain_dim + n_rot,
            "attention.value_length": value_dim,
        }
    return values | {
        "attention.key_length": rank + n_rot,
        "attention.value_length": rank,
        "attention.key_length_mla": plain_dim + n_rot,
        "attention.value_length_mla": value_dim,
    }


CASES = (
    # Queries are compressed, too.
    Tiny(
        "deepseek2",
        "deepseek2",
        n_kv_heads=1,
        head_dim=40,
        n_rot=8,
        choice_bias=True,
        keys=keys(32, 8, 12, 20, q_rank=24)
        | YARN
        | {
            "rope.scaling.yarn_log_multiplier": 0.07,
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_shared_count": 2,
            "expert_feed_forward_length": 40,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
            "expert_gating_func": 2,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "leading_dense_block_count": 1,
        },
    ),
    # No experts; a layer at the end that drafts tokens.
    Tiny(
        "deepseek2-dense",
        "deepseek2",
        n_layers=3,
        n_kv_heads=1,
        head_dim=144,
        tied=True,
        keys=keys(128, 16, 32, 32, q_rank=48) | {"leading_dense_block_count": 3},
    ),
    # The number of layers at which llama.cpp asks for queries that are not compressed.
    Tiny(
        "deepseek2-lite",
        "deepseek2",
        n_layers=27,
        n_embd=32,
        n_heads=2,
        n_kv_heads=1,
        head_dim=36,
        n_ff=48,
        keys=keys(32, 4, 12, 16)
        | YARN
        | {
            "rope.scaling.yarn_log_multiplier": 0.0707,
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_shared_count": 2,
            "expert_feed_forward_length": 24,
            "leading_dense_block_count": 1,
        },
    ),
    # The sizes of DeepSeek V2 and V3: rows that are stored once.
    Tiny(
        "deepseek2-576",
        "deepseek2",
        n_layers=2,
        n_heads=8,
        n_kv_heads=1,
        head_dim=576,
        keys=keys(512, 64, 128, 128, q_rank=48) | {"leading_dense_block_count": 2},
    ),
    # Files of before 2025: matrices of heads in one tensor, KV heads of their own.
    Tiny(
        "deepseek2-old",
        "deepseek2",
        head_dim=40,
        keys=keys(32, 8, 12, 20, q_rank=24, fused=4) | YARN_ATTN | {"leading_dense_block_count": 3},
    ),
)


def attention_shapes(case: Tiny) -> Shapes:
    """The tensors of a block's attention."""
    values, d, n_heads = case.keys, case.n_embd, case.n_heads
    rank, n_rot = values["attention.kv_lora_rank"], values["rope.dimension_count"]
    suffix = "_mla" if "attention.key_length_mla" in values else ""
    key_dim = values[f"attention.key_length{suffix}"]
    value_dim = values[f"attention.value_length{suffix}"]
    shapes: Shapes = {"attn_q": (n_heads * key_dim, d)}
    if q_rank := values.get("attention.q_lora_rank", 0):
        shapes = {"attn_q_a": (q_rank, d), "attn_q_a_norm": (q_rank,)}
        shapes["attn_q_b"] = (n_heads * key_dim, q_rank)
    shapes |= {"attn_kv_a_mqa": (rank + n_rot, d), "attn_kv_a_norm": (rank,)}
    plain_dim = key_dim - n_rot
    if suffix:
        shapes |= {"attn_k_b": (n_heads, rank, plain_dim), "attn_v_b": (n_heads, value_dim, rank)}
    else:
        shapes["attn_kv_b"] = (n_heads * (plain_dim + value_dim), rank)
    return shapes | {"attn_output": (d, n_heads * value_dim)}
