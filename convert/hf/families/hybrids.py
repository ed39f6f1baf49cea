"""Qwen's gated delta nets and Liquid's short convolutions: tensors and keys."""

from __future__ import annotations

import numpy as np
from gguf import ExpertGatingFuncType, GGUFWriter

from ....ops.arrays import I64
from ...errors import ConvertError
from ..config import Config, number
from ..metadata.keys import add_dense, add_qwen, add_sections
from ..metadata.layers import layer_kinds
from ..views import View, Views, columns, in_order, mapped, reshaped
from . import experts
from .experts import add_experts, add_qwen_moe

ATTENTION = "full_attention"


def add_qwen3next(writer: GGUFWriter, config: Config) -> None:
    """`qwen3next.*`."""
    add_qwen_moe(writer, config)
    _add_delta_net(writer, config)


def add_qwen35(writer: GGUFWriter, config: Config) -> None:
    """`qwen35.*`, the text part."""
    add_qwen(writer, config)
    add_sections(writer, config, [11, 11, 10])
    _add_delta_net(writer, config)


def add_qwen35moe(writer: GGUFWriter, config: Config) -> None:
    """`qwen35moe.*`, the text part."""
    add_qwen_moe(writer, config)
    add_sections(writer, config, [11, 11, 10])
    _add_delta_net(writer, config)


def _add_delta_net(writer: GGUFWriter, config: Config) -> None:
    n_keys, n_values, dim = _heads(config)
    writer.add_ssm_conv_kernel(config.integer("linear_conv_kernel_dim"))
    writer.add_ssm_state_size(dim)
    writer.add_ssm_group_count(n_keys)
    writer.add_ssm_time_step_rank(n_values)
    writer.add_ssm_inner_size(n_values * dim)
    interval = config.integer("full_attention_interval")
    if config.get("layer_types") is not None:
        kinds = layer_kinds(config, ("linear_attention", ATTENTION))
        recurrent = [kind != ATTENTION for kind in kinds]
        writer.add_array(f"{writer.arch}.attention.recurrent_layers", recurrent)
    writer.add_full_attention_interval(interval)
    writer.add_rope_dimension_count(config.rotated_dims)


def _heads(config: Config) -> tuple[int, int, int]:
    """Heads of keys, heads of values, and the length of each; `ConvertError` if they do not fit."""
    n_values, dim = config.integer("linear_num_value_heads"), config.integer("linear_key_head_dim")
    n_keys, length = (
        config.integer("linear_num_key_heads"),
        config.integer("linear_value_head_dim"),
    )
    if not n_keys or not n_values or n_values % n_keys:
        raise ConvertError(
            f"config.json: linear_num_key_heads is {n_keys}, expected a divisor of {n_values} "
            "value heads"
        )
    if length != dim:
        raise ConvertError(
            f"config.json: linear_value_head_dim is {length}, expected that of keys, {dim}"
        )
    return n_keys, n_values, dim


def delta_nets(config: Config, views: Views) -> dict[str, View]:
    """The tensors of delta nets as readers take them.

    rates = -exp(A_log); convolutions lose a dimension of one; qwen3next's `in_proj_qkvz`, a row of
    q, k, v, z for each key head, becomes q, k, v of all heads, and z.
    """
    made: dict[str, View] = {}
    for name, view in experts.split(config, views).items():
        stem, _, end = name.partition(".linear_attn.")
        if end == "A_log":
            made[name] = mapped(view, lambda x: -np.exp(x))
        elif end == "conv1d.weight":
            made[name] = squeezed(name, view)
        elif end == "in_proj_qkvz.weight":
            layer = stem.rpartition(".")[2]
            qkv, z = _groups(name, view, config)
            made[f"blk.{layer}.attn_qkv.weight"] = in_order(view, qkv)
            made[f"blk.{layer}.attn_gate.weight"] = in_order(view, z)
        else:
            made[name] = view
    return made


def squeezed(name: str, view: View) -> View:
    """The kernels of a convolution of each channel with itself: (channels, 1, width) without 1."""
    if len(view.shape) != 3 or view.shape[1] != 1:
        raise ConvertError(f"tensor {name} has shape {view.shape}, expected (channels, 1, width)")
    return reshaped(view, view.shape[0], view.shape[2])


def _groups(name: str, view: View, config: Config) -> tuple[I64, I64]:
    """Rows of q, k, v, and of z, where each key head has its own, one after the other."""
    n_keys, n_values, dim = _heads(config)
    values = n_values // n_keys * dim
    if view.shape[0] != n_keys * 2 * (dim + values):
        raise ConvertError(
            f"tensor {name} has shape {view.shape}, expected {n_keys * 2 * (dim + values)} rows"
        )
    rows = np.arange(view.shape[0]).reshape(n_keys, -1)
    ends = np.cumsum([dim, dim, values])
    q, k, v, z = (part.ravel() for part in np.split(rows, ends, axis=1))
    return np.concatenate([q, k, v]), z


def cyclic_delta_nets(config: Config, views: Views) -> dict[str, View]:
    """`delta_nets` for qwen35: value heads in the order in which readers repeat key heads.

    Stored heads of values stand key head by key head: v = k r + i for i < r. In the file they stand
    as i n_keys + k.
    """
    n_keys, n_values, dim = _heads(config)
    heads = np.arange(n_values).reshape(n_keys, -1).T.ravel()
    rows = (heads[:, None] * dim + np.arange(dim)).ravel()
    behind_keys = 2 * n_keys * dim
    mixed = np.concatenate([np.arange(behind_keys), behind_keys + rows])
    orders = {
        **dict.fromkeys(("in_proj_qkv.weight", "conv1d.weight"), mixed),
        "in_proj_z.weight": rows,
        **dict.fromkeys(("in_proj_a.weight", "in_proj_b.weight"), heads),
        **dict.fromkeys(("A_log", "dt_proj.bias"), heads),
    }
    made = delta_nets(config, views)
    for name, view in made.items():
        end = name.partition(".linear_attn.")[2]
        if end in orders:
            _check_length(name, view, view.shape[0], len(orders[end]))
            made[name] = in_order(view, orders[end])
        elif end == "out_proj.weight":
            _check_length(name, view, view.shape[-1], len(rows))
            made[name] = columns(view, rows)
    return made


def _check_length(name: str, view: View, length: int, expected: int) -> None:
    if length != expected:
        raise ConvertError(
            f"tensor {name} has shape {view.shape}, expected {expected} by config.json"
        )


def add_lfm2(writer: GGUFWriter, config: Config) -> None:
    """`lfm2.*`."""
    _add_liquid(writer, config, _lfm2_length(config))


def add_lfm2moe(writer: GGUFWriter, config: Config) -> None:
    """`lfm2moe.*`."""
    _add_liquid(writer, config, config.integer("intermediate_size"))
    add_experts(writer, config, scores="sigmoid")
    writer.add_expert_feed_forward_length(config.integer("moe_intermediate_size"))
    writer.add_leading_dense_block_count(config.integer("num_dense_layers"))
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)


def _add_liquid(writer: GGUFWriter, config: Config, n_ff: int) -> None:
    add_dense(writer, config, n_ff, "norm_eps")
    writer.add_head_count_kv(layer_counts(config, _attends(config)))
    writer.add_vocab_size(config.integer("vocab_size"))
    writer.add_shortconv_l_cache(config.integer("conv_L_cache"))


def layer_counts(config: Config, attends: list[bool]) -> list[int]:
    """KV heads of each layer, 0 where it has no attention."""
    return [config.n_kv_heads if flag else 0 for flag in attends]


def _attends(config: Config) -> list[bool]:
    """Whether each layer has attention: as listed, or by its number in old files."""
    numbers = config.get("full_attn_idxs")
    if config.get("layer_types") is None and isinstance(numbers, list):
        return [i in numbers for i in range(config.n_layers)]
    return [kind == ATTENTION for kind in layer_kinds(config, ("conv", ATTENTION))]


def _lfm2_length(config: Config) -> int:
    """Rows of the feed-forward, which config.json gives before they are adjusted."""
    key = "block_ff_dim" if config.get("block_ff_dim") else "intermediate_size"
    n = config.integer(key)
    if not config.flag("block_auto_adjust_ff_dim"):
        return n
    n = 2 * n // 3
    if config.get("block_ffn_dim_multiplier") is not None:
        n = int(number({"x": config.get("block_ffn_dim_multiplier")}, "x", "config.json") * n)
    multiple = config.integer("block_multiple_of") or 1
    return -(-n // multiple) * multiple


def short_convolutions(config: Config, views: Views) -> dict[str, View]:
    """Convolutions without their dimension of one."""
    return {
        name: squeezed(name, view) if name.endswith(".conv.conv.weight") else view
        for name, view in views.items()
    }
