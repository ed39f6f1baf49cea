"""Reads how layers rotate positions, from GGUF metadata."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

from .architecture import Architecture
from .layers import YARN_BETA_FAST, YARN_BETA_SLOW, RopeConfig, RopeScaling
from .metadata import Keys

# llama.cpp's defaults for keys that a file may omit.
ROPE_BASE = 10_000.0
BASES = 1.0001, 1e12
"""Smallest and largest value."""
YARN_BETAS = (1e-3, 1e6)
"""Smallest and largest value of both."""
LEAST_FACTOR, MAX_FACTOR, MAX_LOG_MULTIPLIER = 1e-6, 1e6, 1e3


def read_rope(keys: Keys, architecture: Architecture, head_dim: int, n_ctx_orig: int) -> RopeConfig:
    """The rotation of the layers without a window."""
    n_rot = head_dim
    if architecture.rope_layers != "none":  # otherwise files may have any number
        n_rot = keys.integer("rope.dimension_count", head_dim, low=2, high=head_dim)
        if n_rot % 2 or (architecture.whole_head_rope and n_rot != head_dim):
            expected = str(head_dim) if architecture.whole_head_rope else "an even number"
            raise keys.error("rope.dimension_count", n_rot, expected)
    scaling = keys.text("rope.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise keys.error("rope.scaling.type", scaling, "none, linear, yarn or longrope")
    old_factor = keys.number("rope.scale_linear", 0.0)
    factor = keys.number("rope.scaling.factor", old_factor, high=MAX_FACTOR)
    if scaling == "none" or factor == 0.0:
        factor = 1.0
    if factor < LEAST_FACTOR:
        raise keys.error("rope.scaling.factor", factor, f"0 or a number from {LEAST_FACTOR:g}")
    amplitude, beta_fast, beta_slow = _attention_factor(keys), YARN_BETA_FAST, YARN_BETA_SLOW
    if scaling == "yarn":
        key = "rope.scaling.yarn_log_multiplier"
        log_multiplier = keys.number(key, 0.0, high=MAX_LOG_MULTIPLIER)
        if architecture.latent and log_multiplier:
            log_multiplier = 1.0  # the scores are scaled instead, see `latent_keys`
        amplitude *= yarn_amplitude(factor, log_multiplier)
        low, high = YARN_BETAS
        beta_fast = keys.number("rope.scaling.yarn_beta_fast", beta_fast, low=low, high=high)
        beta_slow = keys.number("rope.scaling.yarn_beta_slow", beta_slow, low=low, high=high)
    return RopeConfig(
        n_rot=n_rot,
        base=_base(keys, architecture, head_dim),
        scale=1.0 / factor,
        scaling=cast(RopeScaling, scaling),
        n_ctx_orig=n_ctx_orig,
        amplitude=amplitude,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
    )


def _base(keys: Keys, architecture: Architecture, head_dim: int) -> float:
    low, high = BASES
    base = keys.number("rope.freq_base", ROPE_BASE, low=low, high=high)
    alpha = keys.number("rope.scaling.alpha", 0.0, high=1e6) if architecture.rope_alpha else 0.0
    if not alpha:
        return base
    # NTK-aware scaling of positions.
    base *= math.pow(alpha, head_dim / max(1, head_dim - 2))
    if not low <= base <= high:
        raise keys.error("rope.scaling.alpha", alpha, f"a base from {low:g} to {high:g}")
    return base


def _attention_factor(keys: Keys) -> float:
    """A factor on the amplitude, in addition to that of the kind of scaling."""
    return keys.number("rope.scaling.attn_factor", 1.0, high=1e6)


def yarn_amplitude(factor: float, log_multiplier: float = 0.0) -> float:
    """m(1) / m(log_multiplier) with m(k) = 1 + 0.1 k ln(factor), m(k) = 1 for factors up to 1.

    Source: YaRN (arXiv 2309.00071) section 3.4, as llama.cpp's context applies it.
    """
    growth = 0.1 * math.log(factor) if factor > 1.0 else 0.0
    return (1.0 + growth) / (1.0 + log_multiplier * growth)


def read_windowed_rope(
    keys: Keys, architecture: Architecture, rope: RopeConfig, head_dim: int
) -> RopeConfig:
    """The rotation of the layers with a window, whose heads have `head_dim` numbers; `rope`: that
    of the others."""
    windowing = architecture.windowing
    if windowing is None:
        return rope
    base = windowing.rope_base or rope.base
    if windowing.reads_base:
        low, high = BASES
        base = keys.number("rope.freq_base_swa", base, low=low, high=high)
    n_rot = rope.n_rot
    if windowing.heads != "alike":
        key = "rope.dimension_count_swa"
        n_rot = keys.integer(key, n_rot, low=2, high=head_dim)
        if n_rot % 2 or n_rot > head_dim:
            raise keys.error(key, keys.get(key), f"an even number up to {head_dim}")
    rope = replace(rope, n_rot=n_rot, factors=windowing.factors)
    if windowing.scaled == "all":
        return replace(rope, base=base)
    amplitude = _attention_factor(keys) if windowing.scaled == "amplitude" else 1.0
    return replace(rope, base=base, scaling="none", scale=1.0, amplitude=amplitude)
