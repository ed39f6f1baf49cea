"""The tiny models to test with: sizes and metadata, for every architecture and its variants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import tiny_latent


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
EXPERT_MATRICES = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
QKV_BIAS = ("attn_q", "attn_k", "attn_v")
SECTIONS = "rope.dimension_sections"
GRANITE = {
    "embedding_scale": 3.0,
    "residual_scale": 0.4,
    "attention.scale": 0.15,
    "logit_scale": 4.0,
}
EXPERTS = {"expert_count": 5, "expert_used_count": 2}
GLM = EXPERTS | {
    "expert_feed_forward_length": 40,
    "expert_shared_count": 1,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
    "expert_gating_func": 2,
    "leading_dense_block_count": 1,
}
NEMOTRON_EXPERTS = EXPERTS | {
    "expert_feed_forward_length": 40,
    "expert_shared_feed_forward_length": 56,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, ORIGINAL: 32}
YARN_ATTN = YARN | {"rope.scaling.attn_factor": 0.8}


def delta_net(n_keys: int, n_values: int, dim: int, width: int = 4) -> dict[str, int]:
    """Sizes of a gated delta net, as llama.cpp names them."""
    return {
        "ssm.group_count": n_keys,
        "ssm.time_step_rank": n_values,
        "ssm.state_size": dim,
        "ssm.inner_size": n_values * dim,
        "ssm.conv_kernel": width,
    }


def mamba2(n_heads: int, dim: int, n_groups: int, state: int, width: int = 4) -> dict[str, int]:
    """Sizes of a selective scan, as llama.cpp names them."""
    return {
        "ssm.time_step_rank": n_heads,
        "ssm.inner_size": n_heads * dim,
        "ssm.group_count": n_groups,
        "ssm.state_size": state,
        "ssm.conv_kernel": width,
    }


def nemotron_h(kv_heads: list[int], lengths: list[int]) -> dict[str, Any]:
    """Keys of layers that are a mixer or a feed-forward."""
    return {
        "attention.layer_norm_epsilon": 1e-5,
        "attention.head_count_kv": kv_heads,
        "feed_forward_length": lengths,
    }


def gemma4(pattern: list[bool], n_embd_per_layer: int = 0, n_rot: int = 16) -> dict[str, Any]:
    """Keys of heads of 16 numbers in layers with a window."""
    return {
        SWA: 12,
        PATTERN: pattern,
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "rope.dimension_count_swa": n_rot,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "embedding_length_per_layer_input": n_embd_per_layer,
        "final_logit_softcapping": 30.0,
    }


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
    Tiny("llama-yarn-attn", "llama", head_dim=32, keys=YARN_ATTN),
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
    # Windowed layers have KV heads and a head size of their own; the others use keys as values.
    Tiny(
        "gemma4",
        "gemma4",
        n_layers=4,
        head_dim=80,
        tied=True,
        keys=gemma4([True, True, False, False]) | {"attention.head_count_kv": [4, 4, 1, 1]},
    ),
    # The last layers read keys and values of earlier ones, and each has embeddings of its own.
    Tiny(
        "gemma4-shared",
        "gemma4",
        n_layers=6,
        n_heads=8,
        n_kv_heads=1,
        head_dim=32,
        tied=True,
        keys=gemma4([True, False] * 3, n_embd_per_layer=12, n_rot=8)
        | {"attention.shared_kv_layers": 2, "feed_forward_length": [96] * 4 + [101] * 2},
    ),
    Tiny(
        "gemma4-experts",
        "gemma4",
        head_dim=512,
        tied=True,
        keys=gemma4([True, True, False])
        | EXPERTS
        | {"expert_feed_forward_length": 40, "attention.head_count_kv": [2, 2, 1]},
    ),
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
    Tiny("llama-experts", "llama", keys=EXPERTS),
    Tiny(
        "qwen3moe",
        "qwen3moe",
        n_embd=80,
        head_dim=128,
        keys=EXPERTS | {"expert_feed_forward_length": 33},
    ),
    Tiny(
        "qwen2moe",
        "qwen2moe",
        biases=QKV_BIAS,
        keys=EXPERTS | {"expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 72},
    ),
    Tiny("olmoe", "olmoe", n_heads=8, n_kv_heads=8, head_dim=8, keys=EXPERTS),
    Tiny("granitemoe", "granitemoe", tied=True, keys=GRANITE | EXPERTS),
    Tiny(
        "granitemoe-shared",
        "granitemoe",
        keys=EXPERTS | {"logit_scale": 2.0, "expert_shared_feed_forward_length": 40},
    ),
    Tiny(
        "glm4moe",
        "glm4moe",
        n_rot=8,
        biases=QKV_BIAS,
        choice_bias=True,
        keys=GLM,
    ),
    # Norms of heads, and a layer at the end that drafts tokens.
    Tiny(
        "glm4moe-norms",
        "glm4moe",
        n_layers=4,
        n_heads=8,
        n_kv_heads=1,
        head_dim=80,
        head_norm=True,
        choice_bias=True,
        keys=GLM | {"nextn_predict_layers": 1, "expert_shared_count": 2},
    ),
    # Layers with a window have other numbers of query heads and rotated pairs, and no YaRN.
    Tiny(
        "laguna",
        "laguna",
        n_layers=5,
        n_kv_heads=1,
        head_dim=32,
        n_rot=16,
        choice_bias=True,
        keys=GLM
        | YARN_ATTN
        | {
            "attention.head_count": [4, 8, 8, 8, 4],
            SWA: 12,
            "rope.freq_base": 5e5,
            "rope.freq_base_swa": 1e4,
            "rope.dimension_count_swa": 32,
            "expert_shared_feed_forward_length": 56,
        },
    ),
    # Without windows; a gate for each element.
    Tiny(
        "laguna-elements",
        "laguna",
        n_heads=2,
        n_kv_heads=2,
        head_dim=80,
        choice_bias=True,
        keys=GLM | {"attention.head_count": [2, 2, 2], "expert_shared_feed_forward_length": 40},
    ),
    Tiny(
        "ernie4_5-moe",
        "ernie4_5-moe",
        n_layers=4,
        choice_bias=True,
        keys=EXPERTS
        | {
            "expert_feed_forward_length": 40,
            "expert_shared_feed_forward_length": 56,
            "leading_dense_block_count": 1,
            "interleave_moe_layer_step": 1,
        },
    ),
    Tiny(
        "gpt-oss",
        "gpt-oss",
        n_layers=4,
        head_dim=32,
        n_kv_heads=1,
        biases=(*QKV_BIAS, "attn_output", "ffn_gate_inp", *EXPERT_MATRICES),
        keys=EXPERTS
        | YARN
        | {"expert_feed_forward_length": 40, SWA: 16, "rope.freq_base": 150_000.0},
    ),
    Tiny("smollm3", "smollm3", n_layers=5, tied=True, keys={"rope.freq_base": 5e6}),
    Tiny("smollm3-gqa", "smollm3", n_layers=4, n_heads=8, n_kv_heads=1, head_dim=64),
    # Every section of the rotation has the position of the text.
    Tiny(
        "qwen3vl", "qwen3vl", head_dim=80, n_kv_heads=4, keys={SECTIONS: [14, 13, 13, 0]}, tied=True
    ),
    Tiny(
        "qwen3vl-8b",
        "qwen3vl",
        n_heads=8,
        n_kv_heads=1,
        head_dim=128,
        keys={SECTIONS: [24, 20, 20, 0], "rope.freq_base": 5e6},
    ),
    Tiny("granite", "granite", n_kv_heads=1, keys=GRANITE, tied=True),
    Tiny(
        "granite-e80",
        "granite",
        n_kv_heads=4,
        head_dim=80,
        biases=("attn_output", "ffn_gate", "ffn_up", "ffn_down"),
        keys={"logit_scale": 0.5},
    ),
    Tiny("olmo2", "olmo2", n_heads=5, n_kv_heads=5, n_embd=80, n_ff=101),
    Tiny("olmo2-window", "olmo2", n_layers=5, n_kv_heads=1, keys={SWA: 12, **YARN_ATTN}),
    Tiny(
        "glm4",
        "glm4",
        n_heads=8,
        n_kv_heads=1,
        head_dim=80,
        n_rot=40,
        biases=QKV_BIAS,
    ),
    Tiny("exaone4", "exaone4", n_kv_heads=1, keys={SWA: 8, "factors": "freqs"}),
    # The number of layers at which there are windows, and layers that do not rotate.
    Tiny(
        "exaone4-64",
        "exaone4",
        n_layers=64,
        n_embd=24,
        n_heads=2,
        n_kv_heads=1,
        head_dim=12,
        n_ff=32,
        keys={SWA: 20},
    ),
    Tiny("gemma", "gemma", n_heads=8, n_kv_heads=1, head_dim=256, tied=True),
    Tiny("seed_oss", "seed_oss", n_kv_heads=1, head_dim=32, biases=QKV_BIAS),
    Tiny("ernie4_5", "ernie4_5", n_heads=8, n_kv_heads=1, tied=True, n_embd=51),
    Tiny("hunyuan-dense", "hunyuan-dense", n_kv_heads=1, keys={"rope.scaling.alpha": 50.0}),
    Tiny("command-r", "command-r", n_kv_heads=4, tied=True, keys={"logit_scale": 0.25}),
    # The number of layers at which llama.cpp asks for norms of queries and keys.
    Tiny(
        "command-r-64",
        "command-r",
        n_layers=64,
        n_embd=24,
        n_heads=2,
        n_kv_heads=1,
        head_dim=12,
        n_ff=32,
        tied=True,
        each_head=True,
        keys={"logit_scale": 0.25},
    ),
    Tiny(
        "starcoder2",
        "starcoder2",
        n_kv_heads=1,
        biases=(*QKV_BIAS, "attn_output", "ffn_up", "ffn_down"),
    ),
    Tiny("stablelm", "stablelm", n_heads=5, n_kv_heads=5, n_embd=80, n_rot=4, biases=QKV_BIAS),
    Tiny("stablelm-12b", "stablelm", n_heads=8, n_kv_heads=1, n_embd=128, n_rot=4, each_head=True),
    Tiny("nemotron", "nemotron", n_heads=8, n_kv_heads=1, head_dim=12, n_embd=96, n_rot=6),
    Tiny(
        "phi2",
        "phi2",
        n_heads=2,
        n_kv_heads=2,
        head_dim=80,
        n_embd=160,
        n_rot=32,
        fused_qkv=True,
        biases=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    ),
    Tiny(
        "muse-glimmer",
        "muse-glimmer",
        n_layers=5,
        n_heads=8,
        n_kv_heads=1,
        keys={SWA: 12, "logit_scale": 0.6, "final_logit_softcapping": 8.0},
    ),
    Tiny(
        "muse-glimmer-pattern",
        "muse-glimmer",
        n_layers=4,
        head_dim=80,
        n_rot=40,
        keys={
            SWA: 9,
            PATTERN: [False, True, True, False],
            "logit_scale": 4.0,
            "rope.freq_base_swa": 3e4,
        },
    ),
    Tiny(
        "qwen35",
        "qwen35",
        n_layers=4,
        n_rot=8,
        keys=delta_net(1, 2, 16) | {SECTIONS: [2, 1, 1, 0], "full_attention_interval": 2},
    ),
    # Value heads that take turns with key heads, sizes that no vector divides.
    Tiny(
        "qwen35-heads6",
        "qwen35",
        n_layers=4,
        n_embd=96,
        n_heads=8,
        n_kv_heads=1,
        head_dim=80,
        n_rot=16,
        tied=True,
        keys=delta_net(2, 6, 40) | {SECTIONS: [3, 3, 2, 0], "full_attention_interval": 4},
    ),
    Tiny(
        "lfm2",
        "lfm2",
        n_layers=4,
        keys={"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0, 2]},
    ),
    Tiny(
        "lfm2-tied",
        "lfm2",
        n_layers=3,
        n_embd=96,
        n_heads=8,
        n_kv_heads=1,
        head_dim=12,
        tied=True,
        keys={"shortconv.l_cache": 4, "attention.head_count_kv": [0, 0, 1]},
    ),
    Tiny(
        "qwen35moe",
        "qwen35moe",
        n_layers=4,
        n_rot=8,
        keys=delta_net(2, 4, 16)
        | EXPERTS
        | {SECTIONS: [2, 1, 1, 0], "full_attention_interval": 2}
        | {"expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 40},
    ),
    Tiny(
        "qwen3next",
        "qwen3next",
        n_layers=4,
        n_rot=8,
        keys=delta_net(2, 6, 16)
        | EXPERTS
        | {"full_attention_interval": 4}
        | {"expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 40},
    ),
    Tiny(
        "lfm2moe",
        "lfm2moe",
        n_layers=4,
        choice_bias=True,
        keys={"shortconv.l_cache": 3, "attention.head_count_kv": [0, 0, 2, 0]}
        | EXPERTS
        | {"expert_feed_forward_length": 24, "leading_dense_block_count": 1}
        | {"expert_gating_func": 2},
    ),
    # Queries are compressed, too.
    Tiny(
        "deepseek2",
        "deepseek2",
        n_kv_heads=1,
        head_dim=40,
        n_rot=8,
        choice_bias=True,
        keys=tiny_latent.keys(32, 8, 12, 20, q_rank=24)
        | YARN
        | {
            "rope.scaling.yarn_log_multiplier": 0.07,
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_shared_count": 2,
            "expert_feed_forward_length": 40,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
            "expert_gating_func": 2,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "leading_dense_block_count": 1,
        },
    ),
    # No experts; a layer at the end that drafts tokens.
    Tiny(
        "deepseek2-dense",
        "deepseek2",
        n_layers=3,
        n_kv_heads=1,
        head_dim=144,
        tied=True,
        keys=tiny_latent.keys(128, 16, 32, 32, q_rank=48) | {"leading_dense_block_count": 3},
    ),
    # The number of layers at which llama.cpp asks for queries that are not compressed.
    Tiny(
        "deepseek2-lite",
        "deepseek2",
        n_layers=27,
        n_embd=32,
        n_heads=2,
        n_kv_heads=1,
        head_dim=36,
        n_ff=48,
        keys=tiny_latent.keys(32, 4, 12, 16)
        | YARN
        | {
            "rope.scaling.yarn_log_multiplier": 0.0707,
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_shared_count": 2,
            "expert_feed_forward_length": 24,
            "leading_dense_block_count": 1,
        },
    ),
    # The sizes of DeepSeek V2 and V3: rows that are stored once.
    Tiny(
        "deepseek2-576",
        "deepseek2",
        n_layers=2,
        n_heads=8,
        n_kv_heads=1,
        head_dim=576,
        keys=tiny_latent.keys(512, 64, 128, 128, q_rank=48) | {"leading_dense_block_count": 2},
    ),
    # Files of before 2025: matrices of heads in one tensor, KV heads of their own.
    Tiny(
        "deepseek2-old",
        "deepseek2",
        head_dim=40,
        keys=tiny_latent.keys(32, 8, 12, 20, q_rank=24, fused=4)
        | YARN_ATTN
        | {"leading_dense_block_count": 3},
    ),
    # Attention does not rotate; groups of heads that no vector divides.
    Tiny(
        "granitehybrid",
        "granitehybrid",
        n_layers=4,
        tied=True,
        biases=("ssm_conv1d",),
        keys=GRANITE
        | mamba2(8, 16, 1, 16)
        | {"rope.scaling.finetuned": False, "attention.head_count_kv": [0, 2, 0, 0]},
    ),
    # No scales, and a part of each head rotates, as in Bamba.
    Tiny(
        "granitehybrid-experts",
        "granitehybrid",
        n_layers=4,
        n_embd=51,
        head_dim=12,
        n_heads=8,
        n_kv_heads=1,
        biases=("ssm_conv1d",),
        n_rot=8,
        keys={"expert_shared_feed_forward_length": 40}
        | EXPERTS
        | mamba2(6, 17, 3, 33)
        | {"attention.head_count_kv": [0, 1, 0, 1]},
    ),
    # The last layer is a feed-forward.
    Tiny(
        "nemotron_h",
        "nemotron_h",
        n_layers=5,
        biases=("ssm_conv1d",),
        keys=mamba2(6, 17, 3, 33) | nemotron_h([0, 0, 2, 0, 0], [0, 96, 0, 0, 101]),
    ),
    # Experts without gates.
    Tiny(
        "nemotron_h_moe",
        "nemotron_h_moe",
        n_layers=6,
        n_heads=8,
        n_kv_heads=1,
        head_dim=80,
        choice_bias=True,
        biases=("ssm_conv1d",),
        keys=mamba2(8, 16, 2, 24)
        | nemotron_h([0, 0, 1, 0, 0, 1], [0, 40, 0, 40, 0, 0])
        | NEMOTRON_EXPERTS,
    ),
    # Experts that read and write narrower rows.
    Tiny(
        "nemotron_h_moe-latent",
        "nemotron_h_moe",
        n_layers=4,
        tied=True,
        choice_bias=True,
        biases=("ssm_conv1d",),
        keys=mamba2(4, 32, 1, 16)
        | nemotron_h([0, 0, 2, 0], [0, 40, 0, 40])
        | NEMOTRON_EXPERTS
        | {"moe_latent_size": 33},
    ),
    # Attention and a scan beside each other, with a norm of groups and without one.
    Tiny(
        "falcon-h1",
        "falcon-h1",
        biases=("ssm_conv1d",),
        keys=mamba2(6, 17, 3, 33) | {"rope.freq_base": 1e6},
    ),
    Tiny(
        "falcon-h1-unnormed",
        "falcon-h1",
        n_heads=5,
        n_kv_heads=1,
        head_dim=12,
        n_embd=51,
        n_ff=101,
        tied=True,
        biases=("ssm_conv1d",),
        keys=mamba2(4, 24, 1, 16),
    ),
)
