"""Reads adapter_config.json: the scale of each matrix, and what a GGUF adapter cannot have.

PEFT adds scale · B A to a matrix, scale = alpha / r; with use_rslora alpha / √r. rank_pattern and
alpha_pattern have other values for some matrices, by regular expressions on the ends of their
names. Source: PEFT 0.21, `tuners/lora/config.py` and `utils/other.py` (`get_pattern_key`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConvertError
from ..config import number
from ..files.jsons import brief, read_json

FILE = "adapter_config.json"
MAX_RANK = 1 << 16

_REFUSED = {
    "use_dora": "DoRA scales the columns of the whole matrix",
    "modules_to_save": "whole modules are stored beside the low-rank ones",
    "fan_in_fan_out": "its matrices are transposed",
    "lora_bias": "B has a bias",
    "target_parameters": "it changes stacked experts",
    "trainable_token_indices": "it changes rows of the embedding",
    "layer_replication": "its layers are copies of the model's",
    "alora_invocation_tokens": "it begins at a token of its own (activated LoRA)",
    "megatron_config": "it is split over devices",
    "arrow_config": "it chooses among adapters for each token",
    **dict.fromkeys(
        ("use_qalora", "use_bdlora", "kasa_config", "monteclora_config"),
        "it adds something else than B A",
    ),
}
"""Settings with which the model computes something else than W x + scale · B (A x)."""
_BASE_UNCHANGED = (None, True, False, "gaussian", "eva", "orthogonal", "mica")
"""Initialisations that leave W as it was; the others (PiSSA, OLoRA, …) subtract from it."""
MAX_NAME = 150
"""Characters of a module's name; those of large models have 60."""
_MAX_PATTERN, _MAX_PATTERNS = 200, 1 << 12
# On a name of 150 characters a pattern within these bounds takes less than a second.
_MAX_REPETITIONS = _MAX_GROUPS = 2
_NESTED = re.compile(r"\)[*+?{]")

Patterns = Sequence[tuple[re.Pattern[str], float]]
"""Names of modules, and the value for those."""


def is_adapter(folder: Path) -> bool:
    """Whether a folder has an adapter and no model."""
    return (folder / FILE).is_file() and not any(folder.glob("model*.safetensors"))


@dataclass(frozen=True)
class AdapterSettings:
    """What adapter_config.json says of the scales."""

    rank: int
    alpha: float
    by_root: bool
    """Scales are alpha / √r (rsLoRA)."""
    ranks: Patterns
    alphas: Patterns
    base: str | None
    """The name or the folder of the model that was trained."""

    @staticmethod
    def read(folder: Path) -> AdapterSettings:
        """Of an adapter's folder; `ConvertError` for settings that a GGUF file cannot have."""
        values = read_json(folder / FILE)
        if values.get("peft_type") != "LORA":
            raise _error("peft_type", values.get("peft_type"), "LORA")
        for key, reason in _REFUSED.items():
            if values.get(key):
                raise ConvertError(
                    f"{FILE}: {key} is {brief(values[key])}: {reason}, which a GGUF adapter cannot "
                    "have"
                )
        if values.get("bias", "none") != "none":
            raise _error("bias", values["bias"], "none: a GGUF adapter has no biases")
        start = values.get("init_lora_weights")
        if not (start is None or isinstance(start, (bool, str))) or start not in _BASE_UNCHANGED:
            raise ConvertError(
                f"{FILE}: init_lora_weights is {brief(start)}, which changes the model itself: "
                "save it with PEFT's path_initial_model_for_weight_conversion"
            )
        root, base = values.get("use_rslora") or False, values.get("base_model_name_or_path")
        if not isinstance(root, bool):
            raise _error("use_rslora", root, "true or false")
        rank, alpha = _rank(values.get("r"), "r"), number(values, "lora_alpha", FILE)
        if alpha == 0:
            raise _error("lora_alpha", alpha, "a number other than 0, which GGUF files take for r")
        ranks = _patterns(values, "rank_pattern", _rank)
        alphas = _patterns(values, "alpha_pattern", _alpha)
        return AdapterSettings(
            rank, alpha, root, ranks, alphas, base if isinstance(base, str) else None
        )

    @property
    def file_alpha(self) -> float:
        """`adapter.lora.alpha` of the file: alpha, or alpha √r. Readers divide it by r."""
        return self.alpha * (math.sqrt(self.rank) if self.by_root else 1.0)

    def rank_of(self, module: str) -> int:
        """r of a module, by transformers' name."""
        return int(_value_for(module, self.ranks, self.rank))

    def scale_of(self, module: str) -> float:
        """The factor on B A of a module."""
        alpha, rank = _value_for(module, self.alphas, self.alpha), self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.by_root else rank)


def _rank(value: Any, key: str) -> int:
    if type(value) is not int or not 1 <= value <= MAX_RANK:
        raise _error(key, value, f"a whole number from 1 to {MAX_RANK}")
    return value


def _alpha(value: Any, key: str) -> float:
    return number({key: value}, key, FILE)


def _value_for(module: str, patterns: Patterns, default: float) -> float:
    """The value of the first pattern that matches the end of a name, as PEFT finds it."""
    return next((value for pattern, value in patterns if pattern.match(module)), default)


def _patterns(
    values: Mapping[str, Any], key: str, checked: Callable[[Any, str], float]
) -> Patterns:
    """The patterns of an object; `ConvertError` for those that could take for ever."""
    written = values.get(key) or {}
    if not isinstance(written, Mapping) or len(written) > _MAX_PATTERNS:
        raise _error(key, written, f"an object of at most {_MAX_PATTERNS} patterns")
    return [
        (_compiled(pattern, key), checked(value, f"{key} {brief(pattern)}"))
        for pattern, value in written.items()
    ]


def _compiled(pattern: str, key: str) -> re.Pattern[str]:
    repetitions = sum(map(pattern.count, "*+?{"))
    sound = repetitions <= _MAX_REPETITIONS and pattern.count("(") <= _MAX_GROUPS
    if not sound or len(pattern) > _MAX_PATTERN or _NESTED.search(pattern):
        raise _error(
            key,
            pattern,
            f"patterns of at most {_MAX_REPETITIONS} repetitions and {_MAX_GROUPS} groups, none "
            "nested",
        )
    try:
        return re.compile(rf"(.*\.)?({pattern})$")
    except (re.error, OverflowError, RecursionError) as error:
        raise _error(key, pattern, f"a regular expression ({brief(str(error))})") from None


def _error(key: str, value: object, expected: str) -> ConvertError:
    shown = "missing" if value is None else brief(value)
    return ConvertError(f"{FILE}: {key} is {shown}, expected {expected}")
