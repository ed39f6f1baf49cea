"""Typed reading of config.json, whose keys differ by age and family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...models.config.bounds import MAX_CONTEXT, MAX_EMBD, MAX_FF, MAX_HEADS, MAX_LAYERS, MAX_VOCAB
from ..errors import ConvertError
from .files.jsons import brief

# Bounds that every sound model keeps. These numbers set the length of loops and lists before any
# tensor is read.
F32_MAX = 3.4028234e38
_RANGES = {
    "num_hidden_layers": (1, MAX_LAYERS),
    "num_attention_heads": (1, MAX_HEADS),
    "num_key_value_heads": (1, MAX_HEADS),
    "head_dim": (1, MAX_EMBD),
    "hidden_size": (1, MAX_EMBD),
    "intermediate_size": (1, MAX_FF),
    "vocab_size": (1, MAX_VOCAB),
    "max_position_embeddings": (1, MAX_CONTEXT),
    "original_max_position_embeddings": (1, MAX_CONTEXT),
}

_GPT2 = {
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "activation_function": "hidden_act",
    "rotary_emb_base": "rope_theta",
}
_GLOBAL_KEYS = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
_WHOLE = "full_attention"
_RANGES |= {name: _RANGES[key] for key, name in _GLOBAL_KEYS.items()}


class Config:
    """config.json with its text_config in front and an architecture's defaults behind it.

    Getters raise `ConvertError` that names the key, its value and the expected one.
    """

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        text = values.get("text_config")
        if text is not None and not isinstance(text, Mapping):
            raise ConvertError(f"config.json: text_config is {brief(text)}, expected an object")
        self._values = {**defaults, **_of_gpt2(values), **values, **(text or {})}
        self.rope = _rope_parameters(self._values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str) -> Any:
        """The value as it stands, or None."""
        return self._values.get(key)

    def integer(self, key: str) -> int:
        """A whole number that must be there, from 0 on or as `_RANGES` says."""
        value = self._values.get(key)
        low, high = _RANGES.get(key, (0, MAX_CONTEXT))
        if type(value) is not int or not low <= value <= high:
            raise self._error(key, value, f"a whole number from {low} to {high}")
        return value

    def optional_integer(self, key: str) -> int:
        """The same; 0 where there is none."""
        return 0 if not self._values.get(key) else self.integer(key)

    def optional_number(self, key: str) -> float:
        """A finite number; 0 where there is none."""
        return 0.0 if not self._values.get(key) else self.number(key)

    def number(self, key: str) -> float:
        """A finite number that must be there."""
        return number(self._values, key, "config.json")

    def flag(self, key: str) -> bool:
        """True or false; false where there is none."""
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise self._error(key, value, "true or false")
        return value

    def text(self, key: str) -> str:
        """A string that must be there."""
        value = self._values.get(key)
        if not isinstance(value, str):
            raise self._error(key, value, "a string")
        return value

    @property
    def n_layers(self) -> int:
        """Number of blocks; newer files of some families only say of what kind each is."""
        kinds = self.get("layers_block_type")
        if self.get("num_hidden_layers") is None and isinstance(kinds, list):
            return Config({"num_hidden_layers": len(kinds)}, {}).n_layers
        return self.integer("num_hidden_layers")

    @property
    def n_heads(self) -> int:
        """Number of query heads, at least 1."""
        return self.integer("num_attention_heads")

    @property
    def n_kv_heads(self) -> int:
        """Number of key and value heads; as many as query heads where nothing is said."""
        if self.get("num_key_value_heads") is None:
            return self.n_heads
        return self.integer("num_key_value_heads")

    @property
    def head_dim(self) -> int:
        """Length of a head; the embedding's share of one where nothing is said."""
        if self.get("head_dim") is not None:
            return self.integer("head_dim")
        hidden_size = self.integer("hidden_size")
        if hidden_size < self.n_heads:
            raise self._error("num_attention_heads", self.n_heads, f"at most {hidden_size}")
        return hidden_size // self.n_heads

    @property
    def rotated_dims(self) -> int:
        """Dimensions of a head that are rotated: head_dim, or a part of it."""
        return self.share_of_head(
            self.rope.get("partial_rotary_factor", self.get("partial_rotary_factor"))
        )

    def share_of_head(self, share: Any) -> int:
        """Dimensions of a head: all, or a share of them from config.json."""
        if share is None:
            return self.head_dim
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise ConvertError(
                f"config.json: the share of a head that is rotated is {brief(share)}, expected a "
                "number up to 1"
            )
        return int(self.head_dim * share)

    def of_global_layers(self, key: str) -> int | None:
        """The value of layers without a window where it is another: by its name, or by layer."""
        layers, kinds = self.get("per_layer_config"), self.get("layer_types")
        if isinstance(layers, Mapping) and isinstance(kinds, list):
            for index, values in layers.items():
                whole = str(index).isdecimal() and kinds[int(index) : int(index) + 1] == [_WHOLE]
                if whole and isinstance(values, Mapping) and values.get(key) is not None:
                    return Config({key: values[key]}, {}).integer(key)
        name = _GLOBAL_KEYS[key]
        return None if self.get(name) is None else self.integer(name)

    def refused(self, key: str, expected: str, name: str) -> ConvertError:
        """The error for a setting that a file of the architecture `name` cannot have."""
        return self._error(key, self.get(key), f"{expected} for a {name} file")

    def _error(self, key: str, value: object, expected: str) -> ConvertError:
        shown = "missing" if value is None and key not in self else brief(value)
        return ConvertError(f"config.json: {key} is {shown}, expected {expected}")


def _of_gpt2(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration with GPT-2's names says, in today's; empty for any other."""
    return {new: values[old] for old, new in _GPT2.items() if "n_layer" in values and old in values}


def number(values: Mapping[str, Any], key: str, where: str) -> float:
    """A number of an object, finite as float32; `ConvertError` where it is missing or another."""
    value = values.get(key)
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not -F32_MAX <= value <= F32_MAX
    ):
        shown = brief(value) if key in values else "missing"
        raise ConvertError(f"{where}: {key} is {shown}, expected a number")
    return float(value)


def _rope_parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """The rotation of global layers, in today's names; under `local` that of windowed ones.

    config.json has them in one of three forms, by its age: rope_theta and rope_scaling {"type"} at
    the top; rope_parameters {"rope_theta", "rope_type"}; rope_parameters by kind of layer. Where
    there are two, the one that transformers follows counts.
    """
    parameters, scaling = _object(values, "rope_parameters"), _object(values, "rope_scaling")
    by_layer = "full_attention" in parameters
    if by_layer:
        rope = {**_object(parameters, "full_attention"), **scaling}
        rope["local"] = _object(parameters, "sliding_attention")
    else:
        rope = dict(scaling or parameters)
    rope.setdefault("rope_type", rope.get("type", "default"))
    original, length = "original_max_position_embeddings", values.get("max_position_embeddings")
    if not by_layer and values.get(original) is not None:
        rope[original] = values[original]
    if "rope_theta" in values:
        rope.setdefault("rope_theta", values["rope_theta"])
    if length is not None:
        rope.setdefault(original, length)
    return rope


def _object(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object with names; empty where there is none."""
    value = values.get(key) or {}
    if not isinstance(value, Mapping):
        raise ConvertError(f"config.json: {key} is {brief(value)}, expected an object")
    return dict(value)
