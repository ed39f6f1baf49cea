"""The tensors of layers without keys and values, by the names that llama.cpp asks for."""

from __future__ import annotations

from .tiny_cases import IN_OWN_LAYERS, Tiny

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
