"""Nemotron H, Nano 2 and 3: layers that are a mixer or a feed-forward."""

from __future__ import annotations

from dataclasses import replace

from gguf import GGUFWriter

from ...errors import ConvertError
from ..architecture import HFArchitecture
from ..config import Config
from ..files.jsons import brief
from ..metadata.keys import add_head_dim, add_sizes
from .experts import add_experts
from .hybrids import layer_counts
from .mamba2 import N_CTX, SAME, add_scan, scans

PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def nemotron_kinds(config: Config) -> list[str]:
    """What each layer is: "mamba", "attention", "mlp" or "moe"."""
    pattern = config.get("hybrid_override_pattern") or config.get("layers_block_type")
    names = pattern if isinstance(pattern, (str, list)) else []
    kinds = [
        PATTERN.get(x) if isinstance(pattern, str) else SAME.get(str(x), str(x)) for x in names
    ]
    if len(kinds) != config.n_layers or set(kinds) - set(PATTERN.values()):
        raise ConvertError(
            f"config.json: hybrid_override_pattern is {brief(pattern)}, expected a letter of "
            f"{' '.join(PATTERN)} for each of {config.n_layers} layers"
        )
    return [str(kind) for kind in kinds]


def choose_nemotron(config: Config, entry: HFArchitecture) -> HFArchitecture:
    """The entry for models with experts, or for those without."""
    kinds = set(nemotron_kinds(config))
    if {"mlp", "moe"} <= kinds:
        raise ConvertError(
            "config.json: layers of the kinds mlp and moe, expected one of the two: a file has "
            "experts in all its feed-forwards or in none"
        )
    return entry if "moe" in kinds else replace(entry, name="nemotron_h")


def add_nemotron_h(writer: GGUFWriter, config: Config) -> None:
    """`nemotron_h.*` and `nemotron_h_moe.*`: Nemotron H, Nano 2 and 3."""
    kinds, experts = nemotron_kinds(config), writer.arch == "nemotron_h_moe"
    length = config.integer("moe_intermediate_size" if experts else "intermediate_size")
    add_sizes(writer, config, N_CTX, [length * (kind in ("mlp", "moe")) for kind in kinds])
    writer.add_head_count_kv(layer_counts(config, [kind == "attention" for kind in kinds]))
    add_head_dim(writer, config)
    writer.add_layer_norm_eps(config.number("layer_norm_epsilon"))
    if config.get("rms_norm_eps") is not None:
        writer.add_layer_norm_rms_eps(config.number("rms_norm_eps"))
    writer.add_vocab_size(config.integer("vocab_size"))
    writer.add_rope_dimension_count(config.integer("hidden_size") // config.n_heads)
    writer.add_rope_scaling_finetuned(False)
    add_scan(writer, config)
    if not experts:
        return
    add_experts(writer, config, scores="sigmoid")
    writer.add_expert_group_count(config.integer("n_group"))
    writer.add_expert_group_used_count(config.integer("topk_group"))
    writer.add_expert_feed_forward_length(length)
    shared = config.integer("moe_shared_expert_intermediate_size")
    writer.add_expert_shared_feed_forward_length(shared)
    writer.add_expert_shared_count(config.integer("n_shared_experts"))
    writer.add_expert_weights_norm(config.flag("norm_topk_prob"))
    writer.add_expert_weights_scale(config.number("routed_scaling_factor"))
    if latent := config.optional_integer("moe_latent_size"):
        writer.add_moe_latent_size(latent)


ENTRY = HFArchitecture(
    "nemotron_h_moe",
    add_nemotron_h,
    permuted=True,
    renames=(
        (
            r"\w+\.layers\.(\d+)\.mixer\.experts\.(up|down)_proj\.weight",
            r"blk.\1.ffn_\2_exps.weight",
        ),
    ),
    rewrite=scans,
    choose=choose_nemotron,
    also=("nemotron_h",),
    activation="mlp_hidden_act",
    fixed={"mamba_hidden_act": "silu"},
)
