"""Reads which layers carry a state, and of what size, from GGUF metadata."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops.recurrent import DeltaHeads, ScanHeads
from .architecture import Architecture
from .bounds import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS
from .layers import DeltaNetConfig, Mamba2Config, RecurrentConfig, ShortConvConfig
from .metadata import Keys

WIDTHS = {"low": 2, "high": 8}
"""Of short convolutions: models have 3 or 4."""
MAX_SCAN_HEADS = 1024
"""Of a selective scan: models have up to 256."""
MAX_STATE = 1024
"""Rows of one of its states: models have 128 or 256."""


def read_recurrent(
    keys: Keys, architecture: Architecture, n_layers: int, n_embd: int
) -> tuple[RecurrentConfig | None, ...]:
    """The mixer with a state of each layer; None for those with attention alone.

    Raises `ModelError` where sizes do not divide, and where no layer has attention.
    """
    if architecture.recurrent == "none":
        return (None,) * n_layers
    if architecture.recurrent == "mamba 2 beside attention":
        return (_mamba2(keys, needs_norm=False),) * n_layers
    mixer: RecurrentConfig
    if architecture.counts_kv_heads:
        key = "attention.head_count_kv"
        flags = [n == 0 for n in _numbers(keys, key, n_layers)]
    else:
        key, flags = _delta_layers(keys, n_layers)
    if architecture.recurrent == "short convolution":
        mixer = ShortConvConfig(n_embd, keys.integer("shortconv.l_cache", **WIDTHS))
    elif architecture.recurrent == "mamba 2":
        mixer = _mamba2(keys, needs_norm=True)
    else:
        mixer = _delta_net(keys, grouped=architecture.recurrent != "delta net")
    if all(flags):
        raise keys.error(key, keys.get(key), "a layer with attention")
    return tuple(mixer if flag else None for flag in flags)


def kv_heads(keys: Keys, architecture: Architecture, n_heads: int, high: int) -> int:
    """Heads of keys and values; layers without attention may count none."""
    key = "attention.head_count_kv"
    if not architecture.counts_kv_heads:
        return keys.integer(key, n_heads, high=high)
    value = keys.get(key)
    numbers = keys.listed(key) or [value]
    whole = all(isinstance(n, (int, np.integer)) for n in numbers)
    counts = {int(n) for n in numbers if n != 0} if whole else set()
    if len(counts) != 1:
        raise keys.error(key, value, "0 or one other number for each layer")
    (n,) = counts
    if not 1 <= n <= high:
        raise keys.error(key, value, f"numbers from 0 to {high}")
    return n


def _numbers(keys: Keys, key: str, n_layers: int) -> list[Any]:
    """A number for each layer."""
    numbers = keys.listed(key) or []
    whole = all(isinstance(n, (int, np.integer, np.bool_)) for n in numbers)
    if not whole or len(numbers) < n_layers:
        raise keys.error(key, keys.get(key), f"a number for each of {n_layers} layers")
    return numbers[:n_layers]


def _delta_layers(keys: Keys, n_layers: int) -> tuple[str, list[bool]]:
    """Which layers have a delta net, and the key that says so."""
    key = "attention.recurrent_layers"
    if keys.get(key) is not None:
        return key, [bool(flag) for flag in _numbers(keys, key, n_layers)]
    key = "full_attention_interval"
    interval = keys.integer(key, high=MAX_LAYERS)
    return key, [(i + 1) % interval != 0 for i in range(n_layers)]


def _delta_net(keys: Keys, *, grouped: bool) -> DeltaNetConfig:
    """Sizes as llama.cpp names them: value heads are ranks of a time step, key heads are groups."""
    n_keys = keys.integer("ssm.group_count", high=MAX_HEADS)
    n_values = keys.integer("ssm.time_step_rank", high=MAX_HEADS)
    dim = keys.integer("ssm.state_size", high=MAX_HEAD_DIM)
    if n_values % n_keys:
        raise keys.error("ssm.group_count", n_keys, f"a divisor of {n_values} value heads")
    inner = keys.integer("ssm.inner_size", high=MAX_HEADS * MAX_HEAD_DIM)
    if inner != n_values * dim:
        raise keys.error("ssm.inner_size", inner, f"{n_values} heads of {dim}")
    heads = DeltaHeads(n_keys, n_values, dim, dim, cyclic=int(not grouped))
    return DeltaNetConfig(heads, keys.integer("ssm.conv_kernel", **WIDTHS), fused_gates=grouped)


def _mamba2(keys: Keys, *, needs_norm: bool) -> Mamba2Config:
    """Sizes as llama.cpp names them: heads are ranks of a time step."""
    n_heads = keys.integer("ssm.time_step_rank", high=MAX_SCAN_HEADS)
    n_groups = keys.integer("ssm.group_count", high=MAX_SCAN_HEADS)
    if n_heads % n_groups:
        raise keys.error("ssm.group_count", n_groups, f"a divisor of {n_heads} heads")
    inner = keys.integer("ssm.inner_size", high=n_heads * MAX_HEAD_DIM)
    if inner % n_heads:
        raise keys.error("ssm.inner_size", inner, f"a multiple of {n_heads} heads")
    size = keys.integer("ssm.state_size", high=MAX_STATE)
    heads = ScanHeads(n_heads, inner // n_heads, n_groups, size)
    return Mamba2Config(heads, keys.integer("ssm.conv_kernel", **WIDTHS), needs_norm)
