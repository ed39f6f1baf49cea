"""Which entry of the table a config.json has, and what no file of it can have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...models.config.architectures import ARCHITECTURES
from ..errors import ConvertError
from .architecture import HFArchitecture
from .config import Config
from .files.jsons import brief
from .table import HF_ARCHITECTURES


def architecture_of(values: Mapping[str, Any]) -> HFArchitecture:
    """The table's entry for a config.json; `ConvertError` for one that is not in it.

    Weights that are quantised already are refused too: their tensors are not those of the table.
    """
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and names else values.get("model_type")
    if not isinstance(name, str) or name not in HF_ARCHITECTURES:
        found = f"the architecture {brief(name)} is unknown to kvarn"
        if not names:
            shown = "empty" if names == [] else brief(names)
            found = f"architectures is {shown if 'architectures' in values else 'missing'}"
        raise ConvertError(f"config.json: {found}, expected one of {', '.join(HF_ARCHITECTURES)}")
    quantised = values.get("quantization_config")
    method = quantised.get("quant_method", "unknown") if isinstance(quantised, Mapping) else None
    if method not in (None, HF_ARCHITECTURES[name].packed):
        raise ConvertError(
            f"config.json: the weights are quantised ({brief(method)}): kvarn converts unquantised "
            "models; pull the one that this was made from"
        )
    entry = HF_ARCHITECTURES[name]
    return entry if entry.choose is None else entry.choose(Config(values, entry.defaults), entry)


def check(architecture: HFArchitecture, config: Config) -> None:
    """Raise `ConvertError` for settings that a file of this architecture cannot have."""
    if config.n_layers and config.head_dim % 2:
        raise ConvertError(f"config.json: heads of {config.head_dim}, expected an even number")
    if config.n_heads % config.n_kv_heads:
        raise ConvertError(
            f"config.json: num_key_value_heads is {config.n_kv_heads}, expected a divisor of "
            f"{config.n_heads} heads"
        )
    for key, value in architecture.fixed.items():
        found = config.get(key)
        # An explicit null overrides the family's value, and models take it as false, or as none.
        if key in config and found != value and (found is not None or value):
            only = "none" if value is None else str(value).lower()
            raise config.refused(key, only, architecture.name)
    if architecture.encodes:
        return  # `add_keys` has checked its activation
    expected = {
        "silu": ("silu", "swish"),
        "clamped-silu": ("silu", "swish"),
        "gelu": ("gelu", "gelu_pytorch_tanh", "gelu_new"),
        "relu-squared": ("relu2",),
    }
    allowed = expected[ARCHITECTURES[architecture.name].activation]
    given = [key for key in (architecture.activation, "hidden_act") if key in config]
    activation = next(filter(None, map(config.get, given)), None if given else allowed[0])
    if activation not in allowed:
        raise ConvertError(
            f"config.json: the activation is {brief(activation)}, expected {allowed[0]} for "
            f"{architecture.name}"
        )
