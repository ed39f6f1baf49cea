"""Falcon H1: attention and scans beside each other, and factors that go into the weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from ....system.text import brief
from ...errors import ConvertError
from ..architecture import HFArchitecture, defaults
from ..config import Config, number
from ..keys import add_head_dim, add_sizes
from ..views import View, Views, mapped
from .mamba2 import DEFAULTS, add_scan, inner_size, n_groups, refused, scans, state_size


def add_falcon_h1(writer: GGUFWriter, config: Config) -> None:
    """`falcon-h1.*`; its multipliers are in the weights."""
    if config.rope["rope_type"] != "default":
        raise ConvertError("config.json: rope_type is set, which falcon-h1 does not have")
    if config.flag("mamba_rms_norm") and config.flag("mamba_norm_before_gate"):
        raise refused("mamba_norm_before_gate", config, "false", writer.arch)
    add_sizes(writer, config)
    add_scan(writer, config)
    writer.add_layer_norm_rms_eps(config.number("rms_norm_eps"))
    writer.add_vocab_size(config.integer("vocab_size"))
    add_head_dim(writer, config)
    writer.add_rope_freq_base(number(config.rope, "rope_theta", "config.json"))


def falcon_tensors(config: Config, views: Views) -> dict[str, View]:
    """`scans`, and weights that are multiplied by what config.json says.

    A shared output matrix is a copy, as the embedding has a factor of its own.
    """
    gate, down = _factors(config, "mlp_multipliers", 2)
    attention, output = (config.number(f"attention_{x}_multiplier") for x in ("in", "out"))
    factors = {
        "down_proj": [down],
        "gate_proj": [gate],
        "k_proj": [config.number("key_multiplier"), attention],
        "q_proj": [attention],
        "v_proj": [attention],
        "o_proj": [output],
        "out_proj": [config.number("ssm_out_multiplier")],
        "in_proj": [config.number("ssm_in_multiplier")],
        "lm_head": [config.number("lm_head_multiplier")],
        "embed_tokens": [config.number("embedding_multiplier")],
    }
    made: dict[str, View] = {}
    embedding = "model.embed_tokens.weight"
    if config.flag("tie_word_embeddings") and embedding in views:
        views = {"lm_head.weight": views[embedding], **views}
    for name, view in scans(config, views).items():
        part = name.removesuffix(".weight").rpartition(".")[2]
        made[name] = _multiplied(view, factors[part]) if part in factors else view
        if part == "in_proj":
            made[name] = _by_section(name, made[name], config)
    return made


def _factors(config: Config, key: str, n: int) -> list[float]:
    values = config.get(key)
    if not isinstance(values, list) or len(values) != n:
        raise ConvertError(f"config.json: {key} is {brief(values)}, expected {n} numbers")
    return [number({key: value}, key, "config.json") for value in values]


def _multiplied(view: View, factors: list[float]) -> View:
    """Every weight times each of the factors, one after the other."""

    def multiply(x: NDArray[np.float32]) -> NDArray[np.float32]:
        for factor in factors:
            x = x * np.float32(factor)
        return x

    return mapped(view, multiply)


def _by_section(name: str, view: View, config: Config) -> View:
    """The rows of z, x, B, C and dt, each times a factor of its own."""
    (n_heads, inner), rows = inner_size(config), n_groups(config) * state_size(config)
    sizes = inner, inner, rows, rows, n_heads
    if view.shape[0] != sum(sizes):
        raise ConvertError(f"tensor {name} has shape {view.shape}, expected {sum(sizes)} rows")
    factors = np.repeat(np.array(_factors(config, "ssm_multipliers", 5), np.float32), sizes)
    return replace(
        view, rows=lambda first, stop: view.rows(first, stop) * factors[first:stop, None]
    )


ENTRY = HFArchitecture(
    "falcon-h1",
    add_falcon_h1,
    rewrite=falcon_tensors,
    defaults=defaults(
        8192,
        10_000.0,
        **DEFAULTS,
        **dict.fromkeys(
            (
                "lm_head_multiplier",
                "embedding_multiplier",
                "key_multiplier",
                "attention_in_multiplier",
                "attention_out_multiplier",
                "ssm_in_multiplier",
                "ssm_out_multiplier",
            ),
            1.0,
        ),
        rms_norm_eps=1e-5,
        num_key_value_heads=8,
        mamba_d_ssm=1024,
        mamba_norm_before_gate=True,
        mlp_multipliers=[1.0, 1.0],
        ssm_multipliers=[1.0] * 5,
    ),
)
