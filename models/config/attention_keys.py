"""Reads the attention of each layer, its heads, windows and rotations, from GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from .architecture import Architecture
from .bounds import MAX_CONTEXT, MAX_EMBD, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_WHOLE_HEAD_DIM
from .layers import AttentionConfig, LatentConfig, RopeConfig
from .metadata import Keys
from .recurrent_keys import kv_heads
from .rope_keys import read_windowed_rope


class Heads(NamedTuple):
    """Query heads, KV heads and their size, in layers of one kind."""

    n_heads: int
    n_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class HeadSizes:
    """Heads of a model's layers, without a window and with one."""

    whole: Heads
    windowed: Heads
    in_window: tuple[bool, ...]
    """Which layers have a window."""
    window: int | None
    latent: LatentConfig | None = None


def read_heads(keys: Keys, architecture: Architecture, n_layers: int, n_embd: int) -> HeadSizes:
    """Number and size of heads, and the layers with a window, which may have others."""
    in_window, window = read_windows(keys, architecture, n_layers)
    differ = architecture.windowing.heads if architecture.windowing is not None else "alike"
    if differ == "queries":
        n_heads, n_windowed_heads = _by_kind(keys, "attention.head_count", in_window)
    else:
        n_heads = n_windowed_heads = keys.integer("attention.head_count", high=MAX_HEADS)
    own_kv = differ == "keys and values"
    if own_kv:
        n_kv_heads, n_windowed_kv = _by_kind(keys, "attention.head_count_kv", in_window)
    else:
        n_kv_heads = n_windowed_kv = kv_heads(keys, architecture, n_heads, MAX_HEADS)
    for n_q, n_kv in ((n_heads, n_kv_heads), (n_windowed_heads, n_windowed_kv)):
        if n_q % n_kv:
            raise keys.error("attention.head_count_kv", n_kv, f"a divisor of {n_q} heads")
    if keys.get("attention.key_length") is None and n_embd // n_heads < 1:
        raise keys.error("attention.head_count", n_heads, f"at most n_embd = {n_embd}")
    most = MAX_WHOLE_HEAD_DIM if own_kv else MAX_HEAD_DIM
    head_dim = _head_dim(keys, "key_length", n_embd // n_heads, most)
    # llama.cpp's default for the value length does not follow the key length.
    keys.require("attention.value_length", n_embd // n_heads, head_dim, MAX_EMBD)
    windowed_dim = head_dim
    if own_kv:
        windowed_dim = _head_dim(keys, "key_length_swa", head_dim, most)
    else:
        keys.require("attention.key_length_swa", head_dim, head_dim, MAX_EMBD)
    keys.require("attention.value_length_swa", head_dim, windowed_dim, MAX_EMBD)
    whole = Heads(n_heads, n_kv_heads, head_dim)
    return HeadSizes(whole, Heads(n_windowed_heads, n_windowed_kv, windowed_dim), in_window, window)


def _head_dim(keys: Keys, key: str, default: int, most: int) -> int:
    key = f"attention.{key}"
    head_dim = keys.integer(key, default, high=most)
    if head_dim % 2 or head_dim > most:
        raise keys.error(key, head_dim, f"an even number up to {most}")
    return head_dim


def _by_kind(keys: Keys, key: str, in_window: tuple[bool, ...]) -> tuple[int, int]:
    """Heads of the layers without a window, and of those with one."""
    numbers = keys.per_layer(key, len(in_window), high=MAX_HEADS)
    counts = []
    for kind in (False, True):
        of_kind = {n for n, flag in zip(numbers, in_window) if flag is kind}
        if len(of_kind) > 1:
            expected = "one number for layers with a window and one for the others"
            raise keys.error(key, keys.get(key), expected)
        counts.append(of_kind.pop() if of_kind else numbers[0])
    return counts[0], counts[1]


def read_attention(
    keys: Keys, architecture: Architecture, heads: HeadSizes, rope: RopeConfig, scale: float
) -> tuple[AttentionConfig, ...]:
    """The attention that each layer has, if it has attention; rope: without a window."""
    windowed, n_layers = heads.in_window, len(heads.in_window)
    windowed_rope = rope
    if any(windowed):
        windowed_rope = read_windowed_rope(keys, architecture, rope, heads.windowed.head_dim)
    softcap = architecture.attention_softcap
    if softcap:
        softcap = keys.number("attn_logit_softcapping", softcap, low=1e-3)

    none = architecture.rope_layers == "none" or (
        architecture.rope_layers == "all or none" and not keys.flag("rope.scaling.finetuned", True)
    )

    def rotated(index: int) -> bool:
        if none:
            return False
        if architecture.rope_layers == "windowed":
            return heads.window is None or windowed[index]
        return architecture.rope_layers != "three of four" or (index + 1) % 4 != 0

    def layer(index: int) -> AttentionConfig:
        layer_rope = windowed_rope if windowed[index] else rope
        return AttentionConfig(
            *(heads.windowed if windowed[index] else heads.whole),
            window=heads.window if windowed[index] else None,
            rope=layer_rope if rotated(index) else None,
            attention_scale=scale,
            attention_softcap=softcap,
            sinks=architecture.attention_sinks,
            latent=heads.latent,
        )

    layers = tuple(layer(index) for index in range(n_layers))
    return _sharing(keys, layers) if architecture.shared_kv else layers


def _sharing(keys: Keys, layers: tuple[AttentionConfig, ...]) -> tuple[AttentionConfig, ...]:
    """The last layers attend to the last earlier layer of their kind, with or without a window."""
    key = "attention.shared_kv_layers"
    n_shared = keys.integer(key, 0, low=0, high=MAX_LAYERS)
    last = {layer.window: i for i, layer in enumerate(layers[: max(0, len(layers) - n_shared)])}
    if any(layer.window not in last for layer in layers):
        expected = "earlier layers with and without a window whose keys and values can be shared"
        raise keys.error(key, n_shared, expected)
    first = len(layers) - n_shared
    return tuple(
        layer if i < first else replace(layer, reads=last[layer.window])
        for i, layer in enumerate(layers)
    )


def read_windows(
    keys: Keys, architecture: Architecture, n_layers: int
) -> tuple[tuple[bool, ...], int | None]:
    """Which layers are windowed, and the window."""
    windowing = architecture.windowing
    if windowing is None or windowing.only_at not in (None, n_layers):
        return (False,) * n_layers, None
    key = "attention.sliding_window"
    given = keys.listed(key) is not None or keys.get(key) not in (None, 0)
    if not (windowing.required or windowing.window is not None or given):
        return (False,) * n_layers, None
    window = keys.integer(key, windowing.window, high=MAX_CONTEXT)
    key = "attention.sliding_window_pattern"
    if (pattern := keys.listed(key)) is not None:
        flags = [f for f in pattern[:n_layers] if isinstance(f, (int, np.integer, np.bool_))]
        if len(flags) < n_layers:
            raise keys.error(
                key, keys.get(key), f"a number, or one flag for each of {n_layers} layers"
            )
        return tuple(bool(flag) for flag in flags), window
    period = keys.integer(key, windowing.period, low=0, high=MAX_CONTEXT)
    if period == 0:
        return (True,) * n_layers, window
    whole = 0 if windowing.global_first else period - 1
    return tuple(i % period != whole for i in range(n_layers)), window
