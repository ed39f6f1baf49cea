"""The tensors of tiny models with latent attention (`deepseek2`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tiny_cases import Tiny

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
