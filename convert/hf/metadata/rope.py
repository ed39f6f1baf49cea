"""Scaling of positions: metadata, and the tensors of factors that some models have.

Translates the computation of transformers (`modeling_rope_utils`) to GGUF's keys, and refuses
settings for which there is no key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGUFWriter, RopeScalingType

from ....models.config.architectures import ARCHITECTURES
from ....models.config.bounds import MAX_CONTEXT
from ....models.config.rope_keys import (
    LEAST_FACTOR,
    MAX_FACTOR,
    MAX_LOG_MULTIPLIER,
    YARN_BETAS,
    yarn_amplitude,
)
from ....ops.arrays import F32
from ...errors import ConvertError
from ..config import Config, number
from ..files.jsons import brief

_WHERE = "config.json's rope parameters"
ROUNDED = ("gpt-oss",)
"""Architectures for which the range of YaRN may be said not to be rounded: readers round it."""
_PLAIN = ("default", "linear", "yarn")
_KINDS = {
    "by scaling": (*_PLAIN, "llama3", "longrope"),
    "longrope": ("default", "longrope"),
    "freqs": (*_PLAIN, "llama3"),
}
"""Kinds of scaling by the tensors that an architecture may have; `_PLAIN` where it has none."""


def scaling_kind(name: str, config: Config) -> str:
    """The scaling of positions in a file of architecture `name`, by transformers' name.

    Raises `ConvertError` for a kind that such a file cannot have.
    """
    tensors = ARCHITECTURES[name].rope_tensors
    kind = config.rope["rope_type"]
    if tensors == "longrope" and kind in ("su", "yarn"):
        return "longrope"  # as in transformers' Phi3Config
    kinds = _KINDS.get(tensors, _PLAIN)
    windowing = ARCHITECTURES[name].windowing
    if windowing is not None and windowing.heads == "keys and values":
        kinds = ("proportional",)
    if kind == "dynamic" and ARCHITECTURES[name].rope_alpha:
        return "dynamic"  # its alpha goes into the base
    if kind not in kinds:
        raise ConvertError(
            f"{_WHERE}: rope_type is {brief(kind)}, expected {', '.join(kinds)} for a {name} file"
        )
    if (local := config.rope.get("local")) is not None:
        if windowing is None or windowing.scaled == "all":
            raise ConvertError(f"{_WHERE} differ by kind of layer, which a {name} file cannot say")
        windowed = local.get("rope_type", local.get("type", "default"))
        if windowed != "default":
            raise _refused("rope_type of sliding_attention", windowed, "default")
    if kind == "proportional":
        return "proportional"
    share = config.rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    partial = tensors == "longrope" or (windowing is not None and windowing.heads == "queries")
    if kind != "default" and not partial and share not in (None, 1):
        raise ConvertError(
            f"{_WHERE}: partial_rotary_factor is {brief(share)} with rope_type {kind}, expected 1 "
            f"for a {name} file"
        )
    return str(kind)


def add_rope(writer: GGUFWriter, config: Config) -> None:
    """Base frequencies and the scaling of positions."""
    add_scaling(writer, config)
    writer.add_rope_freq_base(number(config.rope, "rope_theta", _WHERE))
    windowing = ARCHITECTURES[writer.arch].windowing
    if windowing is None or windowing.scaled == "all":
        return
    local = {"rope_theta": config.get("rope_local_base_freq"), **config.rope.get("local", {})}
    if not windowing.reads_base and local["rope_theta"] not in (None, config.rope["rope_theta"]):
        raise _refused("rope_theta of sliding_attention", local["rope_theta"], "that of all layers")
    if windowing.reads_base or local["rope_theta"] is not None:
        writer.add_rope_freq_base_swa(number(local, "rope_theta", _WHERE))


def add_scaling(writer: GGUFWriter, config: Config) -> None:
    """The scaling of positions; `ConvertError` for one that such a file cannot have."""
    kind = scaling_kind(writer.arch, config)
    if kind == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(_within(config.rope, "factor", LEAST_FACTOR, MAX_FACTOR))
    elif kind == "yarn":
        _add_yarn(writer, config)
    elif kind == "longrope":
        if ARCHITECTURES[writer.arch].rope_tensors == "by scaling":
            writer.add_rope_scaling_type(RopeScalingType.LONGROPE)
            writer.add_rope_scaling_orig_ctx_len(_original(config))
        writer.add_rope_scaling_attn_factors(long_factors(config).amplitude)


def factor_tensors(name: str, config: Config) -> dict[str, F32]:
    """Divisors of the frequencies that a file of architecture `name` has as tensors, by name."""
    kind = scaling_kind(name, config)
    if kind == "llama3":
        return {"rope_freqs.weight": llama3_factors(config)}
    if kind == "proportional":
        return {"rope_freqs.weight": proportional_factors(config)}
    if kind == "longrope":
        factors = long_factors(config)
        return {
            "rope_factors_long.weight": factors.long,
            "rope_factors_short.weight": factors.short,
        }
    return {}


def _add_yarn(writer: GGUFWriter, config: Config) -> None:
    rope = config.rope
    for key in ("attn_factor", "extrapolation_factor"):
        if rope.get(key) not in (None, 1):
            raise _refused(key, rope[key], "1: transformers ignores it")
    if not rope.get("truncate", True) and writer.arch not in ROUNDED:
        raise _refused("truncate", rope["truncate"], "true: readers of GGUF files round the range")
    factor = _stretch(config)
    if factor == 1:  # given, or of equal lengths, which tell none
        number(rope, "factor", _WHERE)
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(factor)
    writer.add_rope_scaling_orig_ctx_len(_original(config))
    betas = {
        "beta_fast": writer.add_rope_scaling_yarn_beta_fast,
        "beta_slow": writer.add_rope_scaling_yarn_beta_slow,
    }
    for key, add in betas.items():
        if rope.get(key):  # transformers takes 0 for none
            add(_within(rope, key, *YARN_BETAS))
    implied = yarn_amplitude(factor)
    if config.get("model_type") == "ministral3":
        log_multiplier = _within(rope, "mscale_all_dim", 0.0, MAX_LOG_MULTIPLIER)
        writer.add_rope_scaling_yarn_log_mul(log_multiplier)
        implied = yarn_amplitude(factor, log_multiplier)
    latent = ARCHITECTURES[writer.arch].latent
    if latent:
        # Of readers' scores, which grow by it; the amplitude is 1 then.
        log_multiplier = _within(rope, "mscale_all_dim", 1e-6, MAX_LOG_MULTIPLIER)
        writer.add_rope_scaling_yarn_log_mul(0.1 * log_multiplier)
        implied = 1.0
    relative = _yarn_amplitude(config, factor) / implied
    if math.isclose(relative, 1.0, rel_tol=1e-7):
        return
    if latent:
        value = f"{rope.get('mscale')} and {rope['mscale_all_dim']}"
        raise _refused("mscale and mscale_all_dim", value, "equal numbers")
    windowing = ARCHITECTURES[writer.arch].windowing
    if windowing is not None and windowing.scaled == "amplitude":
        raise ConvertError(
            f"{_WHERE}: attention_factor or mscale make an amplitude of {relative * implied:g}, "
            f"expected {implied:g}: a {writer.arch} file would apply it to windowed layers too"
        )
    writer.add_rope_scaling_attn_factors(relative)


def _yarn_amplitude(config: Config, factor: float) -> float:
    """The amplitude of the rotation, as in transformers' `_compute_yarn_parameters`."""
    rope = config.rope
    if rope.get("attention_factor") is not None:
        return _within(rope, "attention_factor", 0.0, MAX_FACTOR)
    if not (rope.get("mscale") and rope.get("mscale_all_dim")):
        return yarn_amplitude(factor)
    scale, scale_all = (
        _within(rope, key, 0.0, MAX_LOG_MULTIPLIER) for key in ("mscale", "mscale_all_dim")
    )
    return yarn_amplitude(factor, scale_all) / yarn_amplitude(factor, scale)


def llama3_factors(config: Config) -> F32:
    """Divisors of the frequencies, float32 (head_dim / 2,).

    A frequency f = theta^(-2i/E) whose wavelength 2π/f is below original/high_freq_factor stays,
    one above original/low_freq_factor is divided by `factor`, between them the two are blended.
    Source: Llama 3.1, as transformers' `_compute_llama3_parameters` has it.
    """
    rope = config.rope
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, original = (number(rope, key, _WHERE) for key in keys)
    theta = number(rope, "rope_theta", _WHERE)
    if not (factor > 0 and 0 < low < high and original > 0 and theta > 0):
        raise ConvertError(
            f"{_WHERE}: factor {factor:g}, low_freq_factor {low:g}, high_freq_factor {high:g}, "
            f"original length {original:g}, rope_theta {theta:g}: expected numbers above 0, the "
            "low factor below the high one"
        )
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    wavelengths = 2 * math.pi * theta**exponents
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)


STILL = 1e30
"""A divisor of frequencies with which pairs do not rotate, as llama.cpp's converter writes it."""


def proportional_factors(config: Config) -> F32:
    """Divisors of the frequencies of layers without a window, float32 (head_dim / 2,).

    A share of the pairs rotates, the first ones, with the frequencies that all would have.
    """
    n = (config.of_global_layers("head_dim") or config.head_dim) // 2
    share = number(config.rope, "partial_rotary_factor", _WHERE)
    if not 0 < share <= 1:
        raise _refused("partial_rotary_factor", share, "a number up to 1")
    factors = np.full(n, STILL, np.float32)
    factors[: int(n * share)] = 1.0
    return factors


@dataclass(frozen=True)
class LongFactors:
    """LongRoPE: divisors of the frequencies, float32 (n_rot / 2,), and the rotation's amplitude."""

    long: F32
    short: F32
    amplitude: float


def long_factors(config: Config) -> LongFactors:
    """The factors of a model with rope_type longrope.

    amplitude = sqrt(1 + ln s / ln original) for a context s times the original one, or
    `attention_factor`. Source: LongRoPE (arXiv 2402.13753), as transformers'
    `_compute_longrope_parameters` has it.
    """
    rope, original = config.rope, _original(config)
    if original < 2:
        raise _refused("original_max_position_embeddings", original, "2 or more")
    stretch = max(1.0, _stretch(config))
    amplitude = math.sqrt(1 + math.log(stretch) / math.log(original))
    if rope.get("attention_factor") is not None:
        amplitude = _within(rope, "attention_factor", 0.0, MAX_FACTOR)
    long, short = (_factors(config, key) for key in ("long_factor", "short_factor"))
    return LongFactors(long, short, amplitude)


def _factors(config: Config, key: str) -> F32:
    n = config.rotated_dims // 2
    values = config.rope.get(key)
    if key not in config.rope:
        raise ConvertError(f"{_WHERE}: {key} is missing, expected {n} numbers")
    if not isinstance(values, list) or len(values) != n:
        raise _refused(key, values, f"{n} numbers")
    factors = {str(i): value for i, value in enumerate(values)}
    return np.array([number(factors, i, f"{_WHERE}: {key}") for i in factors], np.float32)


def _stretch(config: Config) -> float:
    """The ratio of the new context length to the original one: `factor`, or by the lengths."""
    if config.rope.get("factor") is None:
        return config.integer("max_position_embeddings") / _original(config)
    return _within(config.rope, "factor", LEAST_FACTOR, MAX_FACTOR)


def _original(config: Config) -> int:
    """Tokens of the contexts before positions were scaled."""
    return int(_within(config.rope, "original_max_position_embeddings", 1, MAX_CONTEXT))


def _within(values: Mapping[str, Any], key: str, low: float, high: float) -> float:
    value = number(values, key, _WHERE)
    if not low <= value <= high:
        raise _refused(key, value, f"a number from {low:g} to {high:g}")
    return value


def _refused(key: str, value: object, expected: str) -> ConvertError:
    return ConvertError(f"{_WHERE}: {key} is {brief(value)}, expected {expected}")
