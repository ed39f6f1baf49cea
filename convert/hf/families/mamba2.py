"""Mamba 2 in hybrids: tensors and keys; and what else Granite 4 and Bamba have."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from ...errors import ConvertError
from ..architecture import HFArchitecture
from ..config import Config
from ..files.jsons import brief
from ..metadata.keys import add_granite, add_qwen
from ..metadata.layers import layer_kinds
from ..views import View, Views, mapped
from .experts import add_granite_moe, count, split_granite
from .hybrids import layer_counts, squeezed

N_CTX = 1 << 20
"""The context of files whose layers know no positions, as llama.cpp's converter has it."""
SAME = {"linear_attention": "mamba", "full_attention": "attention"}
# Newer files write infinity as an object.
_NO_LIMITS = None, [0.0, float("inf")], [0.0, {"__float__": "Infinity"}]
_SCAN = re.compile(r"\w+\.layers\.(\d{1,4})\.(?:mamba|mixer)\.(.+)")


def inner_size(config: Config) -> tuple[int, int]:
    """Heads of a scan, and the numbers of all of them; `ConvertError` if they do not fit."""
    if config.get("mamba_num_heads") is not None:  # Nemotron H
        n, dim = config.integer("mamba_num_heads"), config.integer("mamba_head_dim")
        if not n * dim:
            raise ConvertError(f"config.json: a scan of {n} heads of {dim}, expected 1 or more")
        return n, n * dim
    n, key = config.integer("mamba_n_heads"), "mamba_d_ssm"
    inner = config.optional_integer(key)
    if not inner:
        inner, key = config.integer("mamba_expand") * config.integer("hidden_size"), "mamba_expand"
    stated = config.get("mamba_d_head")
    if not n or inner % n or stated not in (None, "auto", inner // n):
        raise ConvertError(
            f"config.json: {key} is {brief(config.get(key))}, which makes {inner} numbers, "
            f"expected {n} heads of {brief(stated)}"
        )
    return n, inner


def _key(config: Config, *names: str) -> int:
    """The first of these keys that config.json has."""
    return config.integer(next((x for x in names if config.get(x) is not None), names[0]))


def n_groups(config: Config) -> int:
    """Groups of heads that share B and C."""
    return _key(config, "mamba_n_groups", "n_groups")


def state_size(config: Config) -> int:
    """Rows of a state: numbers of B and of C."""
    return _key(config, "mamba_d_state", "ssm_state_size")


def add_scan(writer: GGUFWriter, config: Config) -> None:
    """`*.ssm.*`; `ConvertError` for biases and limits that a file cannot have."""
    n_heads, inner = inner_size(config)
    writer.add_ssm_conv_kernel(_key(config, "mamba_d_conv", "conv_kernel"))
    writer.add_ssm_state_size(state_size(config))
    writer.add_ssm_group_count(n_groups(config))
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_time_step_rank(n_heads)
    for key in ("mamba_proj_bias", "use_bias", "attention_bias", "mlp_bias", "projectors_bias"):
        if config.flag(key):
            raise config.refused(key, "false", writer.arch)
    if config.get("time_step_limit") not in _NO_LIMITS:
        raise config.refused("time_step_limit", "none", writer.arch)


def scans(config: Config, views: Views) -> dict[str, View]:
    """The tensors of scans as readers take them.

    rates = -exp(A_log), and these and D have a row for each head; convolutions lose a dimension of
    one; norms have a row for each group.
    """
    made: dict[str, View] = {}
    (n_heads, inner), groups = inner_size(config), n_groups(config)
    if not groups or inner % groups:
        raise ConvertError(f"config.json: {groups} groups of {inner} numbers of a scan")
    for name, view in views.items():
        match = _SCAN.fullmatch(name)
        prefix, end = (f"blk.{match[1]}.", match[2]) if match else ("", "")
        if end == "A_log":
            made[f"{prefix}ssm_a"] = mapped(_rows(name, view, n_heads, 1), lambda x: -np.exp(x))
        elif end == "D":
            made[f"{prefix}ssm_d"] = _rows(name, view, n_heads, 1)
        elif end == "dt_bias":
            made[f"{prefix}ssm_dt.bias"] = view
        elif end == "conv1d.weight":
            made[name] = squeezed(name, view)
        elif end == "norm.weight":
            made[f"{prefix}ssm_norm.weight"] = _rows(name, view, groups, inner // groups)
        else:
            made[name] = view
    return made


def _rows(name: str, view: View, n: int, length: int) -> View:
    """A vector as n rows."""
    if view.shape != (n * length,):
        raise ConvertError(f"tensor {name} has shape {view.shape}, expected ({n * length},)")

    def read(first: int, stop: int) -> NDArray[np.float32]:
        return np.ascontiguousarray(view.rows(0, 1).reshape(n, length)[first:stop])

    return View((n, length), read)


def _attends(config: Config) -> list[bool]:
    """Whether each layer of Granite has attention."""
    kinds = layer_kinds(config, ("mamba", "attention", *SAME))
    return [SAME.get(kind, kind) == "attention" for kind in kinds]


def choose_granite(config: Config, entry: HFArchitecture) -> HFArchitecture:
    """The entry for hybrids; or one for models whose layers all have attention."""
    if not all(_attends(config)):
        return entry
    return replace(entry, name="granitemoe" if count(config) else "granite")


def add_granite4(writer: GGUFWriter, config: Config) -> None:
    """`granitehybrid.*`: Granite 4 H; `granite.*` and `granitemoe.*` for Granite 4 without scans,
    whose files have the keys of scans, too."""
    attends = _attends(config)
    if count(config):
        add_granite_moe(writer, config)
    else:
        add_granite(writer, config)
        length = config.integer("shared_intermediate_size")
        writer.add_feed_forward_length(length)
        writer.add_expert_shared_feed_forward_length(length)
        writer.add_expert_count(0)
        writer.add_expert_used_count(config.optional_integer("num_experts_per_tok"))
    add_scan(writer, config)
    writer.add_head_count_kv(layer_counts(config, attends))
    writer.add_rope_scaling_finetuned(all(attends))
    if not all(attends):
        writer.add_context_length(N_CTX)
    expected = ("rope",) if all(attends) else (None, "nope")
    if config.get("position_embedding_type") not in expected:
        raise config.refused("position_embedding_type", str(expected[-1]), writer.arch)


def add_bamba(writer: GGUFWriter, config: Config) -> None:
    """`granitehybrid.*`, for Bamba: dense feed-forwards, positions and no multipliers."""
    indices = config.get("attn_layer_indices") or []
    known = range(config.n_layers)
    if not isinstance(indices, list) or not all(type(i) is int and i in known for i in indices):
        raise config.refused("attn_layer_indices", f"numbers below {config.n_layers}", writer.arch)
    if config.optional_integer("attn_rotary_emb") not in (0, config.rotated_dims):
        raise config.refused("attn_rotary_emb", str(config.rotated_dims), writer.arch)
    add_qwen(writer, config)
    writer.add_vocab_size(config.integer("vocab_size"))
    writer.add_rope_dimension_count(config.rotated_dims)
    add_scan(writer, config)
    writer.add_head_count_kv(layer_counts(config, [i in indices for i in known]))
    writer.add_rope_scaling_finetuned(True)


def granite_hybrids(config: Config, views: Views) -> dict[str, View]:
    """`scans`, and gates and ups apart."""
    return split_granite(config, scans(config, views))
