"""Falcon H1: attention and scans beside each other, and factors that go into the weights."""

from __future__ import annotations

import numpy as np
from gguf import GGUFWriter

from ....ops.arrays import F32
from ...errors import ConvertError
from ..architecture import HFArchitecture
from ..config import Config, number
from ..metadata.keys import add_head_dim, add_sizes, add_unscaled
from ..views import View, Views
from .mamba2 import add_scan, inner_size, n_groups, scans, state_size


def add_falcon_h1(writer: GGUFWriter, config: Config) -> None:
    """`falcon-h1.*`; its multipliers are in the weights."""
    if config.flag("mamba_rms_norm") and config.flag("mamba_norm_before_gate"):
        raise config.refused("mamba_norm_before_gate", "false", writer.arch)
    add_sizes(writer, config)
    add_scan(writer, config)
    writer.add_layer_norm_rms_eps(config.number("rms_norm_eps"))
    writer.add_vocab_size(config.integer("vocab_size"))
    add_head_dim(writer, config)
    add_unscaled(writer, config)


def falcon_tensors(config: Config, views: Views) -> dict[str, View]:
    """`scans`; a shared output matrix is a copy, as the embedding has a factor of its own."""
    embedding = "model.embed_tokens.weight"
    if config.flag("tie_word_embeddings") and embedding in views:
        views = {"lm_head.weight": views[embedding], **views}
    return scans(config, views)


_BY_KEY = {
    "k_proj": ("key_multiplier", "attention_in_multiplier"),
    "q_proj": ("attention_in_multiplier",),
    "v_proj": ("attention_in_multiplier",),
    "o_proj": ("attention_out_multiplier",),
    "out_proj": ("ssm_out_multiplier",),
    "in_proj": ("ssm_in_multiplier",),
    "lm_head": ("lm_head_multiplier",),
    "embed_tokens": ("embedding_multiplier",),
}
_OF_MLP = "gate_proj", "down_proj"


def falcon_factors(config: Config, name: str, n_rows: int) -> list[F32]:
    """What config.json says; rows of z, x, B, C and dt have factors of their own."""
    part = name.removesuffix(".weight").rpartition(".")[2]
    numbers = [config.number(key) for key in _BY_KEY.get(part, ())]
    if part in _OF_MLP:
        numbers = [_numbers(config, "mlp_multipliers", 2)[_OF_MLP.index(part)]]
    factors = [np.array([number], np.float32) for number in numbers]
    if part != "in_proj":
        return factors
    (n_heads, inner), rows = inner_size(config), n_groups(config) * state_size(config)
    sizes = inner, inner, rows, rows, n_heads
    if n_rows != sum(sizes):
        raise ConvertError(f"tensor {name} has {n_rows} rows, expected {sum(sizes)}")
    sections = np.array(_numbers(config, "ssm_multipliers", 5), np.float32)
    return [*factors, np.repeat(sections, sizes)]


def _numbers(config: Config, key: str, n: int) -> list[float]:
    values = config.get(key)
    if not isinstance(values, list) or len(values) != n:
        raise config.refused(key, f"{n} numbers", "falcon-h1")
    return [number({key: value}, key, "config.json") for value in values]


ENTRY = HFArchitecture("falcon-h1", add_falcon_h1, rewrite=falcon_tensors, factors=falcon_factors)
