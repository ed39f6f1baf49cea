"""Tiny models with layers that carry a state, and the tensors of these layers."""

from __future__ import annotations

from typing import Any

from .case import EXPERTS, GRANITE, IN_OWN_LAYERS, SECTIONS, Tiny

OUTPUT_NORM = dict.fromkeys(("lfm2", "lfm2moe"), "token_embd_norm")
"""Where the last norm has another name."""
UNSUFFIXED = {"ssm_a": "ssm_a", "ssm_d": "ssm_d", "ssm_dt": "ssm_dt.bias"}
UNSUFFIXED |= {name: name for name in ("ffn_gate_inp.scale", "ffn_down_exps.scale")}
"""Vectors whose names do not end in ".weight"."""
MEANS = {
    "ssm_a": -0.3,
    "ssm_d": 1.0,
    "ssm_dt": 0.0,
    "layer_output_scale": 0.8,
    "ffn_gate_inp.scale": 6.0,
}
MEANS |= dict.fromkeys(("post_ffw_norm_1", "post_ffw_norm_2", "pre_ffw_norm_2"), 1.0)
MEANS["ffn_down_exps.scale"] = 1.0


def _delta_keys(n_keys: int, n_values: int, dim: int, width: int = 4) -> dict[str, int]:
    """Sizes of a gated delta net, as llama.cpp names them."""
    return {
        "ssm.group_count": n_keys,
        "ssm.time_step_rank": n_values,
        "ssm.state_size": dim,
        "ssm.inner_size": n_values * dim,
        "ssm.conv_kernel": width,
    }


def _scan_keys(n_heads: int, dim: int, n_groups: int, state: int, width: int = 4) -> dict[str, int]:
    """Sizes of a selective scan, as llama.cpp names them."""
    return {
        "ssm.time_step_rank": n_heads,
        "ssm.inner_size": n_heads * dim,
        "ssm.group_count": n_groups,
        "ssm.state_size": state,
        "ssm.conv_kernel": width,
    }


def _layer_keys(kv_heads: list[int], lengths: list[int]) -> dict[str, Any]:
    """Keys of layers that are a mixer or a feed-forward."""
    return {
        "attention.layer_norm_epsilon": 1e-5,
        "attention.head_count_kv": kv_heads,
        "feed_forward_length": lengths,
    }


NEMOTRON_EXPERTS = EXPERTS | {
    "expert_feed_forward_length": 40,
    "expert_shared_feed_forward_length": 56,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
}
CASES = (
    Tiny(
        "qwen35",
        "qwen35",
        n_layers=4,
        n_rot=8,
        keys=_delta_keys(1, 2, 16) | {SECTIONS: [2, 1, 1, 0], "full_attention_interval": 2},
    ),
    # Value heads that take turns with key heads, sizes that no vector divides.
    Tiny(
        "qwen35-heads6",
        "qwen35",
        n_layers=4,
        n_embd=96,
        n_heads=8,
        n_kv_heads=1,
        head_dim=80,
        n_rot=16,
        tied=True,
        keys=_delta_keys(2, 6, 40) | {SECTIONS: [3, 3, 2, 0], "full_attention_interval": 4},
    ),
    Tiny(
        "lfm2",
        "lfm2",
        n_layers=4,
        keys={"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0, 2]},
    ),
    Tiny(
        "lfm2-tied",
        "lfm2",
        n_layers=3,
        n_embd=96,
        n_heads=8,
        n_kv_heads=1,
        head_dim=12,
        tied=True,
        keys={"shortconv.l_cache": 4, "attention.head_count_kv": [0, 0, 1]},
    ),
    Tiny(
        "qwen35moe",
        "qwen35moe",
        n_layers=4,
        n_rot=8,
        keys=_delta_keys(2, 4, 16)
        | EXPERTS
        | {SECTIONS: [2, 1, 1, 0], "full_attention_interval": 2}
        | {"expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 40},
    ),
    Tiny(
        "qwen3next",
        "qwen3next",
        n_layers=4,
        n_rot=8,
        keys=_delta_keys(2, 6, 16)
        | EXPERTS
        | {"full_attention_interval": 4}
        | {"expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 40},
    ),
    Tiny(
        "lfm2moe",
        "lfm2moe",
        n_layers=4,
        choice_bias=True,
        keys={"shortconv.l_cache": 3, "attention.head_count_kv": [0, 0, 2, 0]}
        | EXPERTS
        | {"expert_feed_forward_length": 24, "leading_dense_block_count": 1}
        | {"expert_gating_func": 2},
    ),
    # Attention does not rotate; groups of heads that no vector divides.
    Tiny(
        "granitehybrid",
        "granitehybrid",
        n_layers=4,
        tied=True,
        biases=("ssm_conv1d",),
        keys=GRANITE
        | _scan_keys(8, 16, 1, 16)
        | {"rope.scaling.finetuned": False, "attention.head_count_kv": [0, 2, 0, 0]},
    ),
    # No scales, and a part of each head rotates, as in Bamba.
    Tiny(
        "granitehybrid-experts",
        "granitehybrid",
        n_layers=4,
        n_embd=51,
        head_dim=12,
        n_heads=8,
        n_kv_heads=1,
        biases=("ssm_conv1d",),
        n_rot=8,
        keys={"expert_shared_feed_forward_length": 40}
        | EXPERTS
        | _scan_keys(6, 17, 3, 33)
        | {"attention.head_count_kv": [0, 1, 0, 1]},
    ),
    # The last layer is a feed-forward.
    Tiny(
        "nemotron_h",
        "nemotron_h",
        n_layers=5,
        biases=("ssm_conv1d",),
        keys=_scan_keys(6, 17, 3, 33) | _layer_keys([0, 0, 2, 0, 0], [0, 96, 0, 0, 101]),
    ),
    # Experts without gates.
    Tiny(
        "nemotron_h_moe",
        "nemotron_h_moe",
        n_layers=6,
        n_heads=8,
        n_kv_heads=1,
        head_dim=80,
        choice_bias=True,
        biases=("ssm_conv1d",),
        keys=_scan_keys(8, 16, 2, 24)
        | _layer_keys([0, 0, 1, 0, 0, 1], [0, 40, 0, 40, 0, 0])
        | NEMOTRON_EXPERTS,
    ),
    # Experts that read and write narrower rows.
    Tiny(
        "nemotron_h_moe-latent",
        "nemotron_h_moe",
        n_layers=4,
        tied=True,
        choice_bias=True,
        biases=("ssm_conv1d",),
        keys=_scan_keys(4, 32, 1, 16)
        | _layer_keys([0, 0, 2, 0], [0, 40, 0, 40])
        | NEMOTRON_EXPERTS
        | {"moe_latent_size": 33},
    ),
    # Attention and a scan beside each other, with a norm of groups and without one.
    Tiny(
        "falcon-h1",
        "falcon-h1",
        biases=("ssm_conv1d",),
        keys=_scan_keys(6, 17, 3, 33) | {"rope.freq_base": 1e6},
    ),
    Tiny(
        "falcon-h1-unnormed",
        "falcon-h1",
        n_heads=5,
        n_kv_heads=1,
        head_dim=12,
        n_embd=51,
        n_ff=101,
        tied=True,
        biases=("ssm_conv1d",),
        keys=_scan_keys(4, 24, 1, 16),
    ),
)


def mixer_shapes(case: Tiny, layer: int) -> dict[str, tuple[int, ...]] | None:
    """The tensors in the place of attention; None where the layer has attention."""
    if case.architecture in OUTPUT_NORM:
        return None if case.keys["attention.head_count_kv"][layer] else _short_conv(case)
    if case.architecture in ("granitehybrid", *IN_OWN_LAYERS):
        return None if case.keys["attention.head_count_kv"][layer] else mamba2(case)
    if case.architecture in ("qwen35", "qwen35moe", "qwen3next"):
        interval = case.keys["full_attention_interval"]
        return None if (layer + 1) % interval == 0 else _delta_net(case)
    return None


def _short_conv(case: Tiny) -> dict[str, tuple[int, ...]]:
    d = case.n_embd
    return {
        "shortconv.in_proj": (3 * d, d),
        "shortconv.conv": (d, case.keys["shortconv.l_cache"]),
        "shortconv.out_proj": (d, d),
    }


def mamba2(case: Tiny) -> dict[str, tuple[int, ...]]:
    """The tensors of a state-space mixer."""
    d = case.n_embd
    names = "time_step_rank", "group_count", "state_size", "inner_size", "conv_kernel"
    n, groups, size, inner, width = (case.keys[f"ssm.{name}"] for name in names)
    row = inner + 2 * groups * size
    norm = {} if case.name.endswith("unnormed") else {"ssm_norm": (groups, inner // groups)}
    return norm | {
        "ssm_in": (inner + row + n, d),
        "ssm_conv1d": (row, width),
        "ssm_a": (n, 1),
        "ssm_d": (n, 1),
        "ssm_dt": (n,),
        "ssm_out": (d, inner),
    }


def _delta_net(case: Tiny) -> dict[str, tuple[int, ...]]:
    d = case.n_embd
    names = "group_count", "time_step_rank", "state_size", "conv_kernel"
    n_keys, n_values, e, width = (case.keys[f"ssm.{name}"] for name in names)
    row = 2 * n_keys * e + n_values * e
    gates = {"ssm_beta": (n_values, d), "ssm_alpha": (n_values, d)}
    if case.architecture == "qwen3next":
        gates = {"ssm_ba": (2 * n_values, d)}
    return {
        "attn_qkv": (row, d),
        "attn_gate": (n_values * e, d),
        **gates,
        "ssm_conv1d": (row, width),
        "ssm_a": (n_values,),
        "ssm_dt": (n_values,),
        "ssm_norm": (e,),
        "ssm_out": (d, n_values * e),
    }
