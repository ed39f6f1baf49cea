"""Scaling of positions: metadata, and the tensors of factors that some models have."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from gguf import GGUFWriter, RopeScalingType
from numpy.typing import NDArray

from ...models.architectures import ARCHITECTURES
from ...models.config import MAX_CONTEXT
from ...system.text import brief
from ..errors import ConvertError
from .config import Config, number

_WHERE = "config.json's rope parameters"


def add_rope(writer: GGUFWriter, config: Config) -> None:
    """Base frequencies and the kind of scaling; `ConvertError` for an unknown kind."""
    rope = config.rope
    kind = rope.get("rope_type", "default")
    if kind == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(number(rope, "factor", _WHERE))
    elif kind == "yarn":
        _add_yarn(writer, config)
    elif kind == "llama3":
        if ARCHITECTURES[writer.arch].rope_tensors != "by scaling":
            raise ConvertError(f"{_WHERE}: a {writer.arch} file cannot have rope_type llama3")
    elif kind != "default":
        raise ConvertError(
            f"{_WHERE}: rope_type is {brief(kind)}, expected default, linear, yarn or llama3"
        )
    writer.add_rope_freq_base(number(rope, "rope_theta", _WHERE))
    if "local_theta" in rope:
        writer.add_rope_freq_base_swa(number(rope, "local_theta", _WHERE))


def _add_yarn(writer: GGUFWriter, config: Config) -> None:
    rope = config.rope
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(number(rope, "factor", _WHERE))
    original = number(rope, "original_max_position_embeddings", _WHERE)
    if not 1 <= original <= MAX_CONTEXT:
        raise ConvertError(f"{_WHERE}: original_max_position_embeddings is {original:g}")
    writer.add_rope_scaling_orig_ctx_len(int(original))
    optional = {
        "extrapolation_factor": writer.add_rope_scaling_yarn_ext_factor,
        "attn_factor": writer.add_rope_scaling_yarn_attn_factor,
        "attention_factor": writer.add_rope_scaling_yarn_attn_factor,
        "beta_fast": writer.add_rope_scaling_yarn_beta_fast,
        "beta_slow": writer.add_rope_scaling_yarn_beta_slow,
    }
    for key, add in optional.items():
        if rope.get(key) is not None:
            add(number(rope, key, _WHERE))


def llama3_factors(config: Config) -> NDArray[np.float32] | None:
    """Divisors of the frequencies, float32 (head_dim / 2,); None for another kind of scaling.

    A frequency f = theta^(-2i/E) whose wavelength 2π/f is below original/high_freq_factor stays,
    one above original/low_freq_factor is divided by `factor`, between them the two are blended.
    Source: Llama 3.1, as transformers' `_compute_llama3_parameters` has it.
    """
    rope = config.rope
    if rope.get("rope_type") != "llama3":
        return None
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


@dataclass(frozen=True)
class LongFactors:
    """LongRoPE: divisors of the frequencies, float32 (n_rot / 2,), and the rotation's amplitude."""

    long: NDArray[np.float32]
    short: NDArray[np.float32]
    amplitude: float


def long_factors(config: Config) -> LongFactors | None:
    """The factors of a phi3 model; None for one that has none.

    amplitude = sqrt(1 + ln s / ln original) for a context s times the original one (yarn:
    1 + 0.1 ln s). Source: LongRoPE (arXiv 2402.13753), as llama.cpp's converter computes it.
    """
    rope = config.rope
    if not rope.get("long_factor"):
        return None
    original = config.integer("original_max_position_embeddings")
    stretch = max(1.0, config.integer("max_position_embeddings") / original)
    if original < 2:
        raise ConvertError(f"config.json: original_max_position_embeddings is {original}")
    kind = rope.get("rope_type")
    if kind in ("su", "longrope"):
        amplitude = math.sqrt(1 + math.log(stretch) / math.log(original))
    elif kind == "yarn":
        amplitude = 1.0 + 0.1 * math.log(stretch)
    else:
        raise ConvertError(f"{_WHERE}: rope_type is {brief(kind)}, expected longrope, su or yarn")
    long, short = (_factors(config, key) for key in ("long_factor", "short_factor"))
    return LongFactors(long, short, amplitude)


def _factors(config: Config, key: str) -> NDArray[np.float32]:
    n = config.rotated_dims // 2
    values = config.rope.get(key)
    if not isinstance(values, list) or len(values) != n:
        raise ConvertError(f"{_WHERE}: {key} is {brief(values)}, expected {n} numbers")
    factors = {str(i): value for i, value in enumerate(values)}
    return np.array([number(factors, i, f"{_WHERE}: {key}") for i in factors], np.float32)
