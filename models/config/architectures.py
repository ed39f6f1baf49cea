"""The table of architectures: the differences between transformers, as data.

One forward pass (`transformer.py`) serves all architectures. A new one is one entry here, as long
as its differences are fields of `Architecture`. Source: llama.cpp (`src/models/*.cpp` as packaged
in llama-cpp-python 0.3.36), whose results kvarn has to match. Imports no Numba.
"""

from __future__ import annotations

from .architecture import Architecture, Windowing
from .expert_keys import ExpertRules
from .hybrids import HYBRIDS

ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        # With experts: Mixtral.
        Architecture(
            "llama",
            rope="normal",
            rope_tensors="by scaling",
            experts=ExpertRules(required=False, separate_length=False),
        ),
        Architecture("mistral3", rope="normal", rope_tensors="by scaling", temperature=True),
        Architecture("qwen2", rope="neox"),
        Architecture("qwen3", rope="neox", qk_norm="head"),
        # Text has one position in all sections of qwen3vl's rotation, so it rotates as qwen3 does.
        # (llama.cpp leaves the pairs alone that no section reaches: 61 and 62 of 64.)
        Architecture("qwen3vl", rope="neox", qk_norm="head"),
        Architecture(
            "qwen2moe", rope="neox", experts=ExpertRules(normalised=False, shared="gated")
        ),
        Architecture("qwen3moe", rope="neox", qk_norm="head", experts=ExpertRules()),
        Architecture(
            "olmoe",
            rope="neox",
            qk_norm="row",
            experts=ExpertRules(separate_length=False, normalised=False),
        ),
        # phi3 files name a sliding window that llama.cpp does not apply (its pull request 13676).
        Architecture(
            "phi3", rope="neox", fused_gate_up=True, rope_tensors="longrope", whole_head_rope=False
        ),
        Architecture(
            "gemma2",
            rope="neox",
            activation="gelu",
            post_norms=True,
            tied=True,
            scaled_embedding=True,
            attention_softcap=50.0,
            final_softcap=30.0,
            windowing=Windowing(period=2, window=4096),
            whole_head_rope=False,
            scale_by_embedding_at=46,
        ),
        Architecture(
            "gemma3",
            rope="neox",
            activation="gelu",
            qk_norm="head",
            post_norms=True,
            scaled_embedding=True,
            final_softcap=0.0,
            windowing=Windowing(period=6, rope_base=10_000.0, scaled="amplitude"),
            whole_head_rope=False,
            scale_by_embedding_at=62,
        ),
        Architecture(
            "gemma4",
            rope="neox",
            activation="gelu",
            qk_norm="head",
            post_norms=True,
            scaled_embedding=True,
            final_softcap=0.0,
            windowing=Windowing(
                period=6,
                required=True,
                rope_base=10_000.0,
                scaled="none",
                factors=False,
                heads="keys and values",
            ),
            rope_tensors="freqs",
            whole_head_rope=False,
            attention_scale=1.0,
            value_norm=True,
            shared_kv=True,
            per_layer_embeddings=True,
            output_scale=True,
            experts=ExpertRules(required=False, beside_dense=True),
        ),
        Architecture(
            "cohere2",
            rope="normal",
            norm="layer",
            parallel="always",
            tied=True,
            logit_scale="multiplies",
            windowing=Windowing(period=4, required=True, reads_base=False),
            rope_layers="windowed",
            whole_head_rope=False,
        ),
        Architecture("smollm3", rope="normal", rope_layers="three of four"),
        Architecture(
            "gpt-oss",
            rope="neox",
            activation="clamped-silu",
            ffn_norm="post_attention_norm",
            windowing=Windowing(period=2, required=True),
            attention_sinks=True,
            experts=ExpertRules(scores="softmax-of-chosen", normalised=False, biases=True),
        ),
        Architecture(
            "granite",
            rope="normal",
            scales=True,
            logit_scale="divides",
            rope_layers="all or none",
            rope_tensors="by scaling",
        ),
        # olmo2 files with a window are Olmo 3.
        Architecture(
            "olmo2",
            rope="neox",
            qk_norm="row",
            pre_norms=False,
            post_norms=True,
            windowing=Windowing(period=4, scaled="none", reads_base=False),
        ),
        Architecture(
            "exaone4",
            rope="neox",
            qk_norm="head",
            pre_norms=False,
            post_norms=True,
            windowing=Windowing(period=4, window=4096, reads_base=False, only_at=64),
            rope_layers="windowed",
            rope_tensors="freqs",
        ),
        Architecture(
            "glm4", rope="normal", fused_gate_up=True, post_norms=True, whole_head_rope=False
        ),
        Architecture(
            "gemma",
            rope="neox",
            activation="gelu",
            tied=True,
            scaled_embedding=True,
            whole_head_rope=False,
        ),
        Architecture("seed_oss", rope="neox", ffn_norm="post_attention_norm"),
        Architecture("ernie4_5", rope="normal"),
        Architecture(
            "hunyuan-dense", rope="neox", qk_norm="head", qk_norm_after_rope=True, rope_alpha=True
        ),
        Architecture(
            "command-r",
            rope="normal",
            norm="layer",
            qk_norm="each head",
            parallel="always",
            tied=True,
            logit_scale="multiplies",
            whole_head_rope=False,
        ),
        Architecture(
            "ernie4_5-moe",
            rope="normal",
            experts=ExpertRules(choice_bias="optional", shared="added"),
        ),
        Architecture(
            "granitemoe",
            rope="normal",
            scales=True,
            logit_scale="divides",
            rope_layers="all or none",
            rope_tensors="by scaling",
            experts=ExpertRules(separate_length=False, shared="added"),
        ),
        Architecture(
            "glm4moe",
            rope="neox",
            qk_norm="head, if present",
            ffn_norm="post_attention_norm",
            whole_head_rope=False,
            experts=ExpertRules(
                scores="sigmoid",
                reads_scores=True,
                normalised="as the file says",
                choice_bias="required",
                shared="added",
            ),
        ),
        Architecture(
            "laguna",
            rope="neox",
            qk_norm="head",
            output_gate="attn_gate",
            softplus_gate=True,
            windowing=Windowing(period=4, scaled="none", heads="queries", global_first=True),
            whole_head_rope=False,
            experts=ExpertRules(
                scores="sigmoid",
                reads_scores=True,
                normalised="as the file says",
                choice_bias="required",
                shared="added",
            ),
        ),
        # DeepSeek V2 and V3, and those that took their attention.
        Architecture(
            "deepseek2",
            rope="normal",
            whole_head_rope=False,
            latent=True,
            experts=ExpertRules(
                required=False,
                sigmoid_sizes=((47, 154_880), (48, 154_880)),  # GLM 4.7 Flash
                reads_scores=True,
                normalised="as the file says",
                choice_bias="optional",
                shared="added",
            ),
        ),
        Architecture("starcoder2", rope="neox", norm="layer", activation="gelu", gated=False),
        Architecture(
            "stablelm",
            rope="neox",
            norm="layer",
            qk_norm="each head",
            parallel="without ffn_norm",
            whole_head_rope=False,
        ),
        Architecture(
            "nemotron",
            rope="neox",
            norm="layer",
            activation="relu-squared",
            gated=False,
            whole_head_rope=False,
        ),
        Architecture(
            "phi2",
            rope="neox",
            norm="layer",
            activation="gelu",
            gated=False,
            parallel="always",
            whole_head_rope=False,
        ),
        Architecture(
            "muse-glimmer",
            rope="normal",
            qk_norm="head",
            post_norms=True,
            post_norm_eps=1e-8,
            output_gate="attn_gate",
            embedding_norm=True,
            logit_scale="multiplies",
            final_softcap=30.0,
            windowing=Windowing(period=4, required=True),
            rope_layers="windowed",
            whole_head_rope=False,
        ),
        *HYBRIDS,
    )
}
