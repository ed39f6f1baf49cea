"""Reads which layers have routed experts, and how tokens choose them, from GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ...ops.experts import MOST_EXPERTS, Routing
from ...ops.experts.routing import Scores
from .bounds import MAX_EMBD, MAX_FF, MAX_LAYERS
from .layers import DenseConfig, ExpertsConfig, FeedForwardConfig
from .metadata import Keys

# llama.cpp's numbers of `expert_gating_func`.
GATING: dict[int, Scores] = {1: "softmax", 2: "sigmoid", 3: "softmax-of-chosen"}


@dataclass(frozen=True)
class ExpertRules:
    """What an architecture's experts are where a file does not say it, or may not."""

    required: bool = True
    """Whether each file has experts; otherwise those whose `expert_count` is not 0."""
    separate_length: bool = True
    """`expert_feed_forward_length` has the rows of an expert, not `feed_forward_length`."""
    scores: Scores = "softmax"
    sigmoid_sizes: tuple[tuple[int, int], ...] = ()
    """Layers and tokens of models whose files do not say that their scores are sigmoids."""
    reads_scores: bool = False
    """Whether a file's `expert_gating_func` counts."""
    normalised: bool | Literal["as the file says"] = True
    """Whether weights are divided by their sum."""
    choice_bias: Literal["none", "optional", "required"] = "none"
    """The tensor `exp_probs_b`, which is added for the choice alone."""
    biases: bool = False
    """Whether each expert's matrices have biases."""
    shared: Literal["none", "added", "gated"] = "none"
    """Whether a file may have experts that all tokens take, and a gate for what these give."""
    beside_dense: bool = False
    """Whether each layer has a dense network, too; it may differ in size from layer to layer."""
    latent: bool = False
    """Whether a file may have experts that read and write narrower rows (`moe_latent_size`)."""
    periodic: bool = False
    """Only the second of each so many layers as `moe_every_n_layers` says has experts; 0: none."""
    in_own_layers: bool = False
    """Whether a layer is either a mixer or a feed-forward, whose length (`feed_forward_length`, one
    for each layer) is then not 0."""


def read_feed_forwards(
    keys: Keys, rules: ExpertRules | None, n_layers: int, n_vocab: int
) -> tuple[FeedForwardConfig | None, ...]:
    """The feed-forward of each layer; None where a layer is a mixer alone."""
    if rules is None:
        keys.refuse("expert_count", 0, "this architecture has no experts")
        return (_dense(keys),) * n_layers
    if (n_layers, n_vocab) in rules.sigmoid_sizes:
        rules = replace(rules, scores="sigmoid")
    low = 1 if rules.required else 0
    n_experts = keys.integer("expert_count", None if low else 0, low=low, high=MOST_EXPERTS)
    if rules.beside_dense:
        lengths = keys.per_layer("feed_forward_length", n_layers, high=MAX_FF)
        dense_parts = tuple(DenseConfig(n_ff) for n_ff in lengths)
        if not n_experts:
            return dense_parts
        experts = _experts(keys, rules, n_experts)
        return tuple(replace(experts, shared=dense, apart=True) for dense in dense_parts)
    if rules.in_own_layers:
        lengths = keys.per_layer("feed_forward_length", n_layers, low=0, high=MAX_FF)
        kinds: dict[int, FeedForwardConfig | None] = {
            n_ff: _experts(keys, rules, n_experts, n_ff) if n_experts else DenseConfig(n_ff)
            for n_ff in set(lengths) - {0}
        }
        return tuple(kinds.get(n_ff) for n_ff in lengths)
    if not n_experts:
        return (_dense(keys),) * n_layers
    experts = _experts(keys, rules, n_experts)
    if rules.periodic:
        period = keys.integer("moe_every_n_layers", 0, low=0, high=MAX_LAYERS)
        routed = (period > 0 and i % period == 1 for i in range(n_layers))
        return tuple(experts if flag else _dense(keys) for flag in routed)
    leading = keys.integer("leading_dense_block_count", 0, low=0, high=MAX_LAYERS)
    keys.refuse("interleave_moe_layer_step", 1, "only experts in all other layers are supported")
    dense = _dense(keys) if leading else experts
    return tuple(dense if i < leading else experts for i in range(n_layers))


def _dense(keys: Keys) -> DenseConfig:
    return DenseConfig(keys.integer("feed_forward_length", high=MAX_FF))


def _experts(
    keys: Keys, rules: ExpertRules, n_experts: int, whole: int | None = None
) -> ExpertsConfig:
    """whole: the layer's `feed_forward_length`, where layers have their own."""
    n_used = keys.integer("expert_used_count", high=n_experts)
    key = "feed_forward_length"
    n_ff = 0
    if rules.separate_length:
        n_ff = keys.integer(f"expert_{key}", 0, low=0, high=MAX_FF)
    if not n_ff:  # llama.cpp's default for files without the key
        n_ff = whole or keys.integer(key, high=MAX_FF)
        n_ff = max(1, n_ff // n_used) if rules.separate_length else n_ff
    routing = _routing(keys, rules, n_experts, n_used)
    shared = None if rules.shared == "none" else _shared(keys, n_ff)
    return ExpertsConfig(
        n_ff,
        routing,
        rules.choice_bias,
        shared,
        rules.shared == "gated",
        rules.biases,
        keys.integer("moe_latent_size", 0, low=0, high=MAX_EMBD) if rules.latent else 0,
    )


def _shared(keys: Keys, n_ff: int) -> DenseConfig | None:
    """The experts that all tokens take, as one network."""
    count = keys.integer("expert_shared_count", 0, low=0, high=MOST_EXPERTS)
    key = "expert_shared_feed_forward_length"
    total = keys.integer(key, min(count * n_ff, MAX_FF), low=0, high=MAX_FF)
    return DenseConfig(total) if total else None


def _routing(keys: Keys, rules: ExpertRules, n_experts: int, n_used: int) -> Routing:
    scores = rules.scores
    key = "expert_gating_func"
    if rules.reads_scores and (number := keys.integer(key, 0, low=0, high=4)):
        if number not in GATING:
            names = ", ".join(f"{n} ({name})" for n, name in GATING.items())
            raise keys.error(key, number, names)
        scores = GATING[number]
    normalised = rules.normalised
    if normalised == "as the file says":
        normalised = keys.flag("expert_weights_norm", False)
    n_groups = keys.integer("expert_group_count", 1, low=0, high=n_experts) or 1
    if n_experts % n_groups:
        raise keys.error("expert_group_count", n_groups, f"a divisor of {n_experts} experts")
    least = -(-n_used // (n_experts // n_groups))
    n_groups_used = 1
    if n_groups > 1:
        n_groups_used = keys.integer("expert_group_used_count", low=least, high=n_groups)
    return Routing(
        n_experts,
        n_used,
        scores,
        n_groups,
        n_groups_used,
        normalised,
        # llama.cpp takes 0 for none.
        scale=keys.number("expert_weights_scale", 0.0, high=1e6) or 1.0,
    )
