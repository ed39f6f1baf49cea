"""Routed experts: their tensors, stacked or split, and the keys that say how tokens choose them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gguf import ExpertGatingFuncType, GGUFWriter

from ....models.config.architectures import ARCHITECTURES
from ....ops.experts import MOST_EXPERTS
from ...errors import ConvertError
from ..config import Config
from ..metadata.keys import add_granite, add_llama, add_qwen
from ..views import View, Views, part, stacked

# A matrix of one expert, or stablelm's norm of one head.
_NUMBERED = re.compile(r"(?P<stem>.+?)\.(?P<kind>experts|norms)\.(?P<number>\d{1,4})\.(?P<end>.+)")
_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_SCORINGS = ("score_function", "scoring_func", "score_func", "moe_router_activation")


def count(config: Config) -> int:
    """Routed experts of a layer; 0 where there are none."""
    n = next((config.integer(key) for key in _COUNTS if config.get(key)), 0)
    if n > MOST_EXPERTS:
        raise ConvertError(f"config.json: {n} experts, expected at most {MOST_EXPERTS}")
    return n


def stack(views: Views, config: Config) -> dict[str, View]:
    """The same tensors, with those that are stored expert by expert, or head by head, stacked.

    Raises `ConvertError` naming the first tensor that is missing or of another shape.
    """
    made: dict[str, View] = {}
    numbered: dict[tuple[str, str, str], dict[int, View]] = {}
    for name, view in views.items():
        if (match := _NUMBERED.fullmatch(name)) is None:
            made[name] = view
        else:
            key = match["stem"], match["kind"], match["end"]
            numbered.setdefault(key, {})[int(match["number"])] = view
    for (stem, kind, end), by_number in numbered.items():
        name = f"{stem}.{kind}.{end}" if kind == "experts" else f"{stem}.{end}"
        n = count(config) if kind == "experts" else max(by_number) + 1
        made[name] = stacked(_in_sequence(by_number, n, f"{stem}.{kind}", end))
    return made


def _in_sequence(by_number: dict[int, View], n: int, stem: str, end: str) -> Sequence[View]:
    """The tensors 0 .. n - 1, all of one shape."""
    for number in (*range(n), max(by_number)):
        if number not in by_number:
            raise ConvertError(
                f"the shards hold no {stem}.{number}.{end}: expected numbers 0 to {n - 1}"
            )
        if number >= n:
            raise ConvertError(f"tensor {stem}.{number}.{end}: config.json has {n} experts")
    shape = by_number[0].shape
    for i in range(n):
        if by_number[i].shape != shape:
            raise ConvertError(
                f"tensor {stem}.{i}.{end} has shape {by_number[i].shape}, number 0 has {shape}"
            )
    return [by_number[i] for i in range(n)]


def halves(name: str, view: View) -> tuple[View, View]:
    """The first and the second half of each matrix's rows: gates and what they multiply."""
    n = view.shape[-2] if len(view.shape) > 1 else 1
    if n % 2:
        raise ConvertError(f"tensor {name} has shape {view.shape}: expected two halves of rows")
    return part(view, slice(n // 2)), part(view, slice(n // 2, None))


def split(config: Config, views: Views) -> dict[str, View]:
    """Experts that are stored stacked, gates and ups in one tensor, as separate tensors."""
    made: dict[str, View] = {}
    for name, view in views.items():
        stem = name.removesuffix(".weight")
        if stem.endswith(".experts.gate_up_proj"):
            base = stem.removesuffix("gate_up_proj")
            pair = halves(name, view)
            made[f"{base}gate_proj.weight"], made[f"{base}up_proj.weight"] = pair
        elif stem.endswith(".experts.down_proj"):
            made[f"{stem}.weight"] = view
        else:
            made[name] = view
    return made


def split_granite(config: Config, views: Views) -> dict[str, View]:
    """Granite's `input_linear` as gates and ups, by the file's names. In models without experts
    the network that all tokens take is the feed-forward."""
    made: dict[str, View] = {}
    suffixes = _GRANITE if count(config) else {"shared_mlp": ""}
    for name, view in views.items():
        match = _LINEAR.fullmatch(name)
        if match is None or match[2] not in suffixes:
            made[name] = view
            continue
        prefix, suffix = f"blk.{match[1]}.ffn_", suffixes[match[2]]
        if match[3] == "output":
            made[f"{prefix}down{suffix}.weight"] = view
            continue
        for end, half in zip(("gate", "up"), halves(name, view)):
            made[f"{prefix}{end}{suffix}.weight"] = half
    return made


_GRANITE = {"block_sparse_moe": "_exps", "shared_mlp": "_shexp"}
_LINEAR = re.compile(
    r"model\.layers\.(\d+)\.(block_sparse_moe|shared_mlp)\.(input|output)_linear\.weight"
)


def add_experts(
    writer: GGUFWriter,
    config: Config,
    *,
    used: str = "num_experts_per_tok",
    scores: str = "softmax",
    n_dense: int = 0,
) -> None:
    """The number of experts and how tokens choose them; n_dense: layers before those with experts.

    `ConvertError` for a choice that readers of the architecture's files do not make.
    """
    n = count(config)
    writer.add_expert_count(n)
    writer.add_expert_used_count(config.integer(used))
    if n < config.integer(used):
        raise ConvertError(f"config.json: {used} is {config.get(used)}, expected at most {n}")
    scoring = next((key for key in _SCORINGS if config.get(key) is not None), None)
    if scoring is not None and config.get(scoring) != scores:
        raise config.refused(scoring, scores, writer.arch)
    rules = ARCHITECTURES[writer.arch].experts
    assert rules is not None
    normalised = config.get("norm_topk_prob")
    if isinstance(rules.normalised, bool) and normalised not in (None, rules.normalised):
        raise config.refused("norm_topk_prob", str(rules.normalised).lower(), writer.arch)
    if config.get("mlp_only_layers") not in (None, [*range(n_dense)]):
        expected = f"the first {n_dense}" if n_dense else "none: all layers have experts"
        raise config.refused("mlp_only_layers", expected, writer.arch)
    if config.get("decoder_sparse_step") not in (None, 1):
        raise config.refused("decoder_sparse_step", "1: all layers have experts", writer.arch)


def add_mixtral(writer: GGUFWriter, config: Config) -> None:
    """`llama.*` with experts."""
    add_llama(writer, config, with_head_dim=config.get("head_dim") is not None)
    add_experts(writer, config)


def add_qwen_moe(writer: GGUFWriter, config: Config) -> None:
    """`qwen2moe.*`, `qwen3moe.*`, and the experts of Qwen's hybrids."""
    add_qwen(writer, config)
    add_experts(writer, config)
    writer.add_expert_feed_forward_length(config.integer("moe_intermediate_size"))
    if shared := config.optional_integer("shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(shared)


def add_olmoe(writer: GGUFWriter, config: Config) -> None:
    """`olmoe.*`."""
    add_qwen(writer, config)
    add_experts(writer, config)


def add_granite_moe(writer: GGUFWriter, config: Config) -> None:
    """`granitemoe.*`: Granite 3 and 4 with experts in all layers."""
    add_granite(writer, config)
    add_experts(writer, config)
    if shared := config.optional_integer("shared_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(shared)


def add_glm4_moe(writer: GGUFWriter, config: Config) -> None:
    """`glm4moe.*`: GLM 4.5 to 4.7."""
    add_qwen(writer, config)
    writer.add_rope_dimension_count(config.rotated_dims)
    add_experts(writer, config, scores="sigmoid")
    writer.add_expert_group_count(config.integer("n_group"))
    writer.add_expert_group_used_count(config.integer("topk_group"))
    writer.add_expert_feed_forward_length(config.integer("moe_intermediate_size"))
    writer.add_expert_shared_count(config.integer("n_shared_experts"))
    writer.add_leading_dense_block_count(config.integer("first_k_dense_replace"))
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config.number("routed_scaling_factor"))
    writer.add_expert_weights_norm(config.flag("norm_topk_prob"))


def add_ernie_moe(writer: GGUFWriter, config: Config) -> None:
    """`ernie4_5-moe.*`."""
    last = config.get("moe_layer_end_index")
    if last not in (None, -1, config.n_layers - 1):
        raise config.refused("moe_layer_end_index", "the last layer", "ernie4_5-moe")
    add_qwen(writer, config)
    add_experts(writer, config, used="moe_k")
    writer.add_interleave_moe_layer_step(1)
    writer.add_leading_dense_block_count(config.integer("moe_layer_start_index"))
    length = config.integer("moe_intermediate_size")
    writer.add_expert_feed_forward_length(length)
    shared = config.integer("moe_num_shared_experts")
    writer.add_expert_shared_count(shared)
    if shared:
        writer.add_expert_shared_feed_forward_length(shared * length)
