"""What a tiny model is, which architectures differ in what, and metadata that several have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Tiny:
    """One model to make: sizes, extra metadata (keys without the architecture's prefix)."""

    name: str
    architecture: str
    n_layers: int = 3
    n_embd: int = 64
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    n_ff: int = 96
    n_vocab: int = 97
    n_ctx_train: int = 512
    n_rot: int | None = None
    tied: bool = False
    biases: tuple[str, ...] = ()
    fused_qkv: bool = False
    choice_bias: bool = False
    head_norm: bool = False
    each_head: bool = False
    """Whether norms of queries and keys have a weight for each head."""
    keys: dict[str, Any] = field(default_factory=dict)
    n_ctx: int = 256
    n_prompt: int = 40

    @property
    def rms(self) -> bool:
        return self.architecture not in LAYER_NORM

    @property
    def gelu(self) -> bool:
        return self.architecture in GELU


# Which architectures differ in what, as llama.cpp asks for their tensors.
NORM_BIAS = ("starcoder2", "stablelm", "nemotron", "phi2")
LAYER_NORM = ("cohere2", "command-r", *NORM_BIAS)
IN_OWN_LAYERS = ("nemotron_h", "nemotron_h_moe")
UNGATED = ("starcoder2", "nemotron", "phi2", *IN_OWN_LAYERS)
FUSED_GATE_UP = ("phi3", "glm4")
HEAD_NORM = (
    "qwen3",
    "qwen3vl",
    "qwen3moe",
    "gemma3",
    "gemma4",
    "exaone4",
    "hunyuan-dense",
    "muse-glimmer",
    "qwen35",
    "qwen35moe",
    "qwen3next",
    "lfm2",
    "lfm2moe",
    "laguna",
)
POST_NORMS = ("gemma2", "gemma3", "gemma4", "olmo2", "exaone4", "glm4", "muse-glimmer")
POST_ATTENTION_IS_PRE_FFN = ("seed_oss", "glm4moe", "gpt-oss", "qwen35", "qwen35moe", "qwen3next")
OUTPUT_GATE = ("qwen35", "qwen35moe", "qwen3next")
NO_PRE_NORMS = ("olmo2", "exaone4")
PARALLEL = ("cohere2", "command-r", "phi2")
GELU = ("gemma", "gemma2", "gemma3", "gemma4", "starcoder2", "phi2")
GRANITES = ("granite", "granitemoe", "granitehybrid")
SCALED_EMBEDDING = ("gemma", "gemma2", "gemma3", "gemma4", *GRANITES)

SWA = "attention.sliding_window"
PATTERN = "attention.sliding_window_pattern"
ORIGINAL = "rope.scaling.original_context_length"
QKV_BIAS = ("attn_q", "attn_k", "attn_v")
SECTIONS = "rope.dimension_sections"
GRANITE = {
    "embedding_scale": 3.0,
    "residual_scale": 0.4,
    "attention.scale": 0.15,
    "logit_scale": 4.0,
}
EXPERTS = {"expert_count": 5, "expert_used_count": 2}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, ORIGINAL: 32}
YARN_ATTN = YARN | {"rope.scaling.attn_factor": 0.8}
