"""The tiny models to test with: sizes and metadata, for every architecture and its variants."""

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
    keys: dict[str, Any] = field(default_factory=dict)
    n_ctx: int = 256
    n_prompt: int = 40

    @property
    def rms(self) -> bool:
        return self.architecture != "cohere2"


SWA = "attention.sliding_window"
PATTERN = "attention.sliding_window_pattern"
ORIGINAL = "rope.scaling.original_context_length"
QKV_BIAS = ("attn_q", "attn_k", "attn_v")
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, ORIGINAL: 32}

CASES: tuple[Tiny, ...] = (
    Tiny("llama-mha", "llama", n_kv_heads=4),
    # Rows that no block size divides, in every matrix.
    Tiny("llama-odd", "llama", n_embd=51, n_heads=6, head_dim=8, n_ff=101, n_vocab=77, tied=True),
    Tiny("llama-e256", "llama", n_heads=2, n_kv_heads=1, head_dim=256),
    Tiny("llama-e80", "llama", n_heads=2, n_kv_heads=2, head_dim=80),
    Tiny("llama-groups8", "llama", n_heads=8, n_kv_heads=1, head_dim=12, n_embd=96),
    Tiny("llama-linear", "llama", keys={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    Tiny("llama-linear-old", "llama", keys={"rope.scale_linear": 2.0, "rope.freq_base": 5e5}),
    Tiny("llama-yarn", "llama", head_dim=32, keys=YARN),
    Tiny("llama-yarn-attn", "llama", head_dim=32, keys=YARN | {"rope.scaling.attn_factor": 0.8}),
    Tiny("llama-freqs", "llama", head_dim=32, keys={"rope.freq_base": 5e5, "factors": "freqs"}),
    Tiny(
        "llama-longrope",
        "llama",
        keys={
            "rope.scaling.type": "longrope",
            ORIGINAL: 64,
            "factors": "longrope",
            "rope.scaling.attn_factor": 1.19,
        },
    ),
    Tiny(
        "llama-bias",
        "llama",
        biases=(*QKV_BIAS, "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
    ),
    Tiny("llama-fused", "llama", fused_qkv=True, biases=("attn_qkv",)),
    Tiny(
        "mistral3",
        "mistral3",
        head_dim=32,
        keys=YARN
        | {
            "rope.scaling.yarn_log_multiplier": 0.7,
            "rope.scaling.yarn_beta_fast": 4.0,
            "rope.scaling.yarn_beta_slow": 0.5,
            "attention.temperature_scale": 0.3,
        },
    ),
    Tiny("qwen2", "qwen2", n_heads=7, n_kv_heads=1, n_embd=112, biases=QKV_BIAS, tied=True),
    Tiny("qwen2-yarn", "qwen2", n_embd=64, biases=QKV_BIAS, keys=YARN),
    Tiny("qwen3", "qwen3", n_embd=80, head_dim=128, keys={"rope.freq_base": 1e6}),
    Tiny("qwen3-tied", "qwen3", n_heads=8, n_kv_heads=2, head_dim=8, n_embd=44, tied=True),
    Tiny("phi3", "phi3", n_heads=2, n_kv_heads=1, head_dim=96, n_embd=192, fused_qkv=True),
    Tiny("phi3-window", "phi3", fused_qkv=True, keys={SWA: 16}),
    Tiny(
        "phi3-long",
        "phi3",
        fused_qkv=True,
        n_rot=12,
        keys={ORIGINAL: 64, "factors": "longrope", "rope.scaling.attn_factor": 1.19},
        tied=True,
    ),
    Tiny(
        "phi3-short",
        "phi3",
        fused_qkv=True,
        keys={ORIGINAL: 256, "factors": "longrope", "rope.scaling.attn_factor": 1.19},
    ),
    Tiny("gemma2", "gemma2", n_layers=4, head_dim=32, tied=True, keys={SWA: 16}),
    Tiny(
        "gemma2-caps",
        "gemma2",
        n_heads=8,
        head_dim=8,
        tied=True,
        keys={SWA: 9, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
    ),
    # The number of layers at which attention is scaled by the embedding's size.
    Tiny(
        "gemma2-46",
        "gemma2",
        n_layers=46,
        n_embd=24,
        n_heads=2,
        n_kv_heads=1,
        head_dim=8,
        n_ff=32,
        tied=True,
        keys={SWA: 20},
    ),
    Tiny(
        "gemma3",
        "gemma3",
        n_layers=7,
        head_dim=32,
        tied=True,
        keys={
            SWA: 16,
            "rope.freq_base": 1e6,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    Tiny(
        "gemma3-pattern",
        "gemma3",
        n_layers=4,
        keys={SWA: 7, PATTERN: [False, True, True, False], "rope.freq_base_swa": 3e4},
    ),
    Tiny("gemma3-dense", "gemma3", n_heads=2, n_kv_heads=1, head_dim=256),
    Tiny("cohere2", "cohere2", n_layers=5, tied=True, keys={SWA: 12, "logit_scale": 0.25}),
    Tiny(
        "cohere2-period",
        "cohere2",
        n_layers=4,
        n_heads=8,
        n_kv_heads=8,
        head_dim=8,
        tied=True,
        n_rot=4,
        keys={SWA: 24, "logit_scale": 2.0, PATTERN: 2},
    ),
    Tiny("smollm3", "smollm3", n_layers=5, tied=True, keys={"rope.freq_base": 5e6}),
    Tiny("smollm3-gqa", "smollm3", n_layers=4, n_heads=8, n_kv_heads=1, head_dim=64),
)
