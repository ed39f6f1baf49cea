"""Reads latent attention, in which a token has one compressed row for all heads, from metadata."""

from __future__ import annotations

import math

from .attention_keys import Heads, HeadSizes
from .bounds import MAX_EMBD, MAX_HEADS, MAX_ROW, MAX_WHOLE_HEAD_DIM
from .layers import LatentConfig, RopeConfig
from .metadata import Keys
from .rope_keys import MAX_LOG_MULTIPLIER


def read_latent_heads(keys: Keys, n_layers: int) -> HeadSizes:
    """Query heads that share one KV head, whose row is [rotated part | compressed part].

    Raises `ModelError` where the sizes of a head and of a stored row do not fit together.
    """
    if temperature := keys.number("attention.temperature_scale", 0.0, low=-math.inf):
        expected = "0: scaled queries are not supported"
        raise keys.error("attention.temperature_scale", temperature, expected)
    n_heads = keys.integer("attention.head_count", high=MAX_HEADS)
    n_rot = keys.integer("rope.dimension_count", low=2, high=MAX_WHOLE_HEAD_DIM)
    key = "attention.kv_lora_rank"
    rank = keys.integer(key, high=MAX_ROW)
    if rank + n_rot > MAX_ROW:
        raise keys.error(key, rank, f"at most {MAX_ROW - n_rot} beside {n_rot} that rotate")
    # Files of before 2025 have the sizes of a head in other keys.
    absorbed = keys.get("attention.key_length_mla") is not None
    suffix = "_mla" if absorbed else ""
    key = f"attention.key_length{suffix}"
    key_dim = keys.integer(key, high=MAX_WHOLE_HEAD_DIM)
    if key_dim <= n_rot:
        raise keys.error(key, key_dim, f"more than the {n_rot} numbers that rotate")
    value_dim = keys.integer(f"attention.value_length{suffix}", high=MAX_WHOLE_HEAD_DIM)
    sizes = {"head_count_kv": n_heads}
    if absorbed:
        sizes = {"head_count_kv": 1, "key_length": rank + n_rot, "value_length": rank}
    for name, number in sizes.items():
        keys.require(f"attention.{name}", number, number, MAX_EMBD)
    q_rank = keys.integer("attention.q_lora_rank", 0, low=0, high=MAX_EMBD)
    heads = Heads(n_heads, 1, n_rot + rank)
    latent = LatentConfig(q_rank, rank, key_dim - n_rot, value_dim)
    return HeadSizes(heads, heads, (False,) * n_layers, None, latent)


def latent_scale(keys: Keys, latent: LatentConfig, rope: RopeConfig) -> float:
    """Factor on q·k: m^2 / sqrt(numbers of a head's key before it is compressed).

    m grows with the factor of positions, as `rope.scaling.yarn_log_multiplier`, a tenth of
    `mscale_all_dim`, says. Source: llama.cpp, `src/models/deepseek2.cpp`.
    """
    key = "rope.scaling.yarn_log_multiplier"
    growth = -math.log(rope.scale)
    m = rope.amplitude * (1.0 + keys.number(key, 0.0, high=MAX_LOG_MULTIPLIER) * growth)
    if rope.scaling != "yarn":
        m *= 1.0 + 0.1 * growth
    return m * m / math.sqrt(latent.plain_dim + rope.n_rot)
