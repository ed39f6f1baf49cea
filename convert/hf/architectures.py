"""The table of Hugging Face architectures that become GGUF files, as data.

Names are those of config.json's `architectures`; facts are llama.cpp's (`conversion/*.py` as
packaged in llama-cpp-python 0.3.36), defaults those of transformers' configuration classes, which
config.json may leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gguf import GGUFWriter

from ...models.architectures import ARCHITECTURES
from ...system.text import brief
from ..errors import ConvertError
from . import keys
from .config import Config


@dataclass(frozen=True)
class HFArchitecture:
    """The rules by which one family of models is converted."""

    name: str
    """`general.architecture` of the file."""
    add_keys: Callable[[GGUFWriter, Config], None]
    """Writes the architecture's own metadata."""
    permuted: bool = False
    """Rows of queries and keys go from halves (i, i + E/2) to neighbours (2i, 2i + 1)."""
    norm_shift: float = 0.0
    """Added to weights of norms: transformers' Gemma multiplies by 1 + weight."""
    drops_output: bool = False
    """A file of this architecture never has an output matrix: it is the embedding."""
    drops_zero_bias: bool = False
    """Biases are left out where they are zero, and refused where they are not."""
    space_prefix: bool | None = None
    """`tokenizer.ggml.add_space_prefix` of SentencePiece vocabularies; None: as their files say."""
    added_tokens_as_listed: bool = False
    """Added tokens are control tokens only where they are marked special, however they look."""
    activation: str = "hidden_act"
    """The key that names the activation."""
    defaults: Mapping[str, Any] = field(default_factory=dict)


_LLAMA = HFArchitecture(
    "llama",
    keys.add_llama,
    permuted=True,
    defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0},
)
_MISTRAL = HFArchitecture(
    "llama",
    keys.add_llama,
    permuted=True,
    defaults={
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "sliding_window": 4096,
    },
)
_MISTRAL3 = HFArchitecture(
    "mistral3",
    keys.add_mistral3,
    permuted=True,
    defaults={
        "max_position_embeddings": 262_144,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
    },
)
_QWEN = {"max_position_embeddings": 32_768, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0}
_GEMMA = {
    "hidden_activation": "gelu_pytorch_tanh",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_GEMMA3 = HFArchitecture(
    "gemma3",
    keys.add_gemma3,
    norm_shift=1.0,
    space_prefix=False,
    activation="hidden_activation",
    defaults={
        **_GEMMA,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    },
)

HF_ARCHITECTURES: dict[str, HFArchitecture] = {
    "LlamaForCausalLM": _LLAMA,
    "LLaMAForCausalLM": _LLAMA,
    "MistralForCausalLM": _MISTRAL,
    "Ministral3ForCausalLM": _MISTRAL3,
    "Mistral3ForConditionalGeneration": _MISTRAL3,
    "Qwen2ForCausalLM": HFArchitecture("qwen2", keys.add_qwen, defaults=_QWEN),
    "Qwen3ForCausalLM": HFArchitecture("qwen3", keys.add_qwen, defaults={**_QWEN, "head_dim": 128}),
    "Phi3ForCausalLM": HFArchitecture(
        "phi3",
        keys.add_phi3,
        added_tokens_as_listed=True,
        defaults={
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
        },
    ),
    "Gemma2ForCausalLM": HFArchitecture(
        "gemma2",
        keys.add_gemma2,
        norm_shift=1.0,
        drops_output=True,
        space_prefix=False,
        activation="hidden_activation",
        defaults={
            **_GEMMA,
            "max_position_embeddings": 8192,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "rope_theta": 10_000.0,
        },
    ),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "Cohere2ForCausalLM": HFArchitecture(
        "cohere2",
        keys.add_cohere2,
        drops_output=True,
        drops_zero_bias=True,
        defaults={
            "logit_scale": 0.0625,
            "max_position_embeddings": 8192,
            "layer_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "sliding_window": 4096,
            "tie_word_embeddings": True,
        },
    ),
    "SmolLM3ForCausalLM": HFArchitecture(
        "smollm3",
        keys.add_smollm3,
        permuted=True,
        defaults={
            "max_position_embeddings": 32_768,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-6,
            "rope_theta": 2_000_000.0,
            "tie_word_embeddings": True,
        },
    ),
}


def architecture_of(values: Mapping[str, Any]) -> HFArchitecture:
    """The table's entry for a config.json; `ConvertError` for one that is not in it.

    Weights that are quantised already are refused too: their tensors are not those of the table.
    """
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and names else values.get("model_type")
    if not isinstance(name, str) or name not in HF_ARCHITECTURES:
        raise ConvertError(
            f"config.json: the architecture {brief(name)} is unknown to kvarn, expected one of "
            f"{', '.join(HF_ARCHITECTURES)}"
        )
    quantised = values.get("quantization_config")
    if isinstance(quantised, Mapping):
        method = quantised.get("quant_method", "unknown")
        raise ConvertError(
            f"config.json: the weights are quantised ({brief(method)}): kvarn converts unquantised "
            "models; pull the one that this was made from"
        )
    return HF_ARCHITECTURES[name]


def check(architecture: HFArchitecture, config: Config) -> None:
    """Raise `ConvertError` for settings that a file of this architecture cannot have."""
    if config.n_layers and config.head_dim % 2:
        raise ConvertError(f"config.json: heads of {config.head_dim}, expected an even number")
    if config.n_heads % config.n_kv_heads:
        raise ConvertError(
            f"config.json: num_key_value_heads is {config.n_kv_heads}, expected a divisor of "
            f"{config.n_heads} heads"
        )
    expected = {"silu": ("silu", "swish"), "gelu": ("gelu", "gelu_pytorch_tanh")}
    allowed = expected[ARCHITECTURES[architecture.name].activation]
    activation = config.get(architecture.activation) or config.get("hidden_act") or allowed[0]
    if activation not in allowed:
        raise ConvertError(
            f"config.json: the activation is {brief(activation)}, expected {allowed[0]} for "
            f"{architecture.name}"
        )
