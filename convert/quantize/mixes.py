"""The type of each tensor in a file of a mix, by the rules of llama.cpp.

A mix has one type for most matrices. Those that lose most by few bits get more: the output, and
values and `ffn_down` of some layers ("more bits" below). Rows that blocks of 256 do not divide get
a type with blocks of 32, or F16. Vectors, norms and tensors that are no weights keep their types.

Source: llama.cpp, `llama_tensor_get_type` (without its exceptions for Falcon).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from gguf import LlamaFileType

from ...ops.types import QUANT_TYPES
from ...runtime.gguf import GGUFError, GGUFFile
from ...system.text import brief
from ..errors import ConvertError


@dataclass(frozen=True)
class Mix:
    """A file type: its number in `general.file_type`, and the type of most matrices."""

    name: str
    file_type: LlamaFileType
    type_name: str

    @property
    def quantised(self) -> bool:
        """Whether the type is no float."""
        return self.type_name not in ("F32", "F16", "BF16")


_NAMES = (
    "f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 iq4_nl "
    "q2_k q3_k_s q3_k_m q3_k_l q4_k_s q4_k_m q5_k_s q5_k_m q6_k"
).split()
MIXES: dict[str, Mix] = {
    name: Mix(
        name,
        LlamaFileType[f"{'ALL' if name == 'f32' else 'MOSTLY'}_{name.upper()}"],
        re.sub("_K_[SML]$", "_K", name.upper()),
    )
    for name in _NAMES
}
"""By the names that `--type` takes."""

_ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}
_FALLBACKS = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}

# Matrices that llama.cpp never quantises: small ones, whose errors would cost more than their bits.
_KEPT = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|ffn_gate_tid2eid\.weight|altup|laurel|per_layer_model_proj"
    r"|^position_embd\.weight$|^token_types\.weight$|ssm_conv1d|shortconv\.conv\.weight"
    r"|indexer\.[kq]_proj\.weight|time_mix_(first|[wva][012]|g[12]|decay_w[12]|lerp_fused)\.weight"
    r"|attn_rel_b\.weight"
)
_LAYER = re.compile(r"blk\.(\d+)\.")
# Layers of the models that llama.cpp calls 70B.
_LAYERS_70B = 80


@dataclass(frozen=True)
class ModelFacts:
    """The numbers of a model that the rules use."""

    architecture: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    n_experts: int = 0

    @classmethod
    def of(cls, file: GGUFFile) -> ModelFacts:
        """From the metadata; `GGUFError` where keys are missing or are no numbers."""
        name = file.architecture

        def first(key: str, default: int) -> int:
            """A number, or the first of one per layer."""
            values = np.ravel(file.metadata.get(f"{name}.{key}", default))
            if values.dtype.kind not in "iu" or not values.size:
                raise GGUFError(file.path, f"metadata {name}.{key}", brief(values), "a number")
            return int(values[0])

        n_heads = first("attention.head_count", 0)
        return cls(
            name,
            file.get(f"{name}.block_count", int),
            n_heads,
            first("attention.head_count_kv", n_heads),
            file.get(f"{name}.expert_count", int, 0),
        )

    @property
    def grouped(self) -> bool:
        """Whether four query heads or more share a KV head."""
        return self.n_kv_heads > 0 and self.n_heads // self.n_kv_heads >= 4

    @property
    def is_70b(self) -> bool:
        if self.n_layers != _LAYERS_70B or self.n_experts == 8:
            return False
        return self.architecture in ("qwen2", "deci", "olmo") or (
            self.architecture == "llama" and self.n_heads != self.n_kv_heads
        )


def mix_of(name: str) -> Mix:
    """The mix of a name, in capitals or not; `ConvertError` where there is none."""
    lower = name.lower()
    mix = MIXES.get(_ALIASES.get(lower, lower))
    if mix is None:
        raise ConvertError(f"unknown type {name!r:.40}: expected one of {', '.join(MIXES)}")
    return mix


def tensor_types(
    mix: Mix,
    shapes: Mapping[str, tuple[int, ...]],
    facts: ModelFacts,
    with_importance: bool = False,
) -> dict[str, str]:
    """Name in `QUANT_TYPES` of each tensor's type; tensors that stay as they are do not appear.

    shapes: all tensors of the model, (…, rows, columns). with_importance: whether there is an
    importance matrix, with which llama.cpp chooses differently in places.
    """
    chooser = _Chooser(mix, shapes, facts, with_importance)
    order = sorted(shapes, key=lambda name: (_layer(name), name))
    return {name: chooser.choose(name) for name in order if _quantises(name, shapes[name])}


def _layer(name: str) -> int:
    match = _LAYER.match(name)
    return int(match[1]) if match else -1


def _quantises(name: str, shape: tuple[int, ...]) -> bool:
    rows = shape[:-1]
    return any(n > 1 for n in rows) and name.endswith("weight") and _KEPT.search(name) is None


class _Chooser:
    """Chooses for the matrices in order; counts those of which only some get more bits."""

    def __init__(
        self,
        mix: Mix,
        shapes: Mapping[str, tuple[int, ...]],
        facts: ModelFacts,
        with_importance: bool,
    ) -> None:
        self._mix, self._shapes, self._facts = mix, shapes, facts
        self._with_importance = with_importance
        self._tied = "output.weight" not in shapes
        self._n_values = sum(_is_values(name) for name in shapes)
        self._values = self._downs = 0

    def choose(self, name: str) -> str:
        if not self._mix.quantised:
            return self._mix.type_name
        n_cols = self._shapes[name][-1]
        return _fitting(self._wanted(name, n_cols), n_cols)

    def _wanted(self, name: str, n_cols: int) -> str:
        default = self._mix.type_name
        if name == "output.weight" or (self._tied and _is_embedding(name)):
            if n_cols % QUANT_TYPES[default].block or default == "Q8_0":
                return "Q8_0"
            return "Q6_K"
        if _is_embedding(name):
            return default
        if _is_values(name):
            self._values += 1
            return self._value_type(self._values - 1)
        if "attn_k.weight" in name:
            return "Q8_0" if self._facts.n_experts == 8 else default
        if "attn_output.weight" in name:
            return self._output_type()
        if "ffn_down" in name:
            self._downs += 1
            # Experts of several layers may stand in any order.
            layer = _layer(name) if self._facts.n_experts > 1 else self._downs - 1
            return self._down_type(layer)
        return default

    def _value_type(self, i: int) -> str:
        """attn_v, number i of those of the model."""
        mix, chosen = self._mix.name, self._mix.type_name
        if mix == "q2_k":
            chosen = "Q4_K" if self._facts.grouped else "Q3_K"
        elif mix == "q3_k_m":
            chosen = "Q5_K" if i < 2 else "Q4_K"
        elif mix == "q3_k_l" or (mix == "iq4_nl" and self._facts.grouped):
            chosen = "Q5_K"
        elif mix in ("q4_k_m", "q5_k_m") and _more_bits(i, self._n_values):
            chosen = "Q6_K"
        elif mix == "q4_k_s" and i < 4:
            chosen = "Q5_K"
        if self._facts.is_70b and chosen in ("Q3_K", "Q4_K"):
            chosen = "Q5_K"
        return "Q8_0" if self._facts.n_experts == 8 else chosen

    def _output_type(self) -> str:
        """attn_output."""
        mix, default = self._mix.name, self._mix.type_name
        if self._facts.n_experts == 8:
            few = ("q2_k", "q3_k_s", "q3_k_m", "iq4_nl", "q4_k_s", "q4_k_m")
            return "Q5_K" if mix in few else default
        return {"q2_k": "Q3_K", "q3_k_m": "Q4_K", "q3_k_l": "Q5_K"}.get(mix, default)

    def _down_type(self, i: int) -> str:
        """ffn_down, of layer i."""
        mix, default, n = self._mix.name, self._mix.type_name, self._facts.n_layers
        if mix == "q2_k":
            return "Q3_K"
        if mix == "q3_k_m":
            return "Q5_K" if i < n // 16 else "Q4_K"
        if mix == "q3_k_l":
            return "Q5_K"
        if mix in ("q4_k_m", "q5_k_m"):
            return "Q6_K" if _more_bits(i, n) else default
        if i < n // 8:
            if mix == "q4_k_s" or (mix == "iq4_nl" and not self._with_importance):
                return "Q5_K"
            if mix in ("q4_0", "q5_0") and self._with_importance:
                return default[:-1] + "1"
        return default


def _is_embedding(name: str) -> bool:
    return name in ("token_embd.weight", "per_layer_token_embd.weight")


def _is_values(name: str) -> bool:
    return any(part in name for part in ("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"))


def _more_bits(i: int, n: int) -> bool:
    """The first and the last eighth, and every third of the others."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def _fitting(type_name: str, n_cols: int) -> str:
    """The type, or the next one whose blocks divide rows of `n_cols`."""
    for name in (type_name, _FALLBACKS.get(type_name, "F16")):
        if n_cols % QUANT_TYPES[name].block == 0:
            return name
    return "F16"
