"""The table of architectures: the differences between transformers, as data.

One forward pass (`models/passes/transformer.py`) serves all architectures. A new one is one entry
here, as long as its differences are fields of `Architecture`. Source: llama.cpp
(`src/models/*.cpp` as packaged in llama-cpp-python 0.3.36), whose results kvarn has to match.
Imports no Numba.
"""

from __future__ import annotations

from functools import partial

from .architecture import Architecture, Windowing
from .expert_keys import ExpertRules

# What families have in common.
_Whole = partial(Architecture, whole_head_rope=True)
_Llama = partial(_Whole, rope="normal")
_Gemma = partial(Architecture, activation="gelu", scaled_embedding=True)
_Gemma3 = partial(_Gemma, qk_norm="head", post_norms=True, final_softcap=0.0)
_LayerNormed = partial(Architecture, norm="layer")
_Cohere = partial(
    _LayerNormed, rope="normal", parallel="always", tied=True, logit_scale="multiplies"
)
_Granite = partial(
    Architecture,
    rope="normal",
    scales=True,
    rope_layers="all or none",
    rope_tensors="by scaling",
)
_GraniteWhole = partial(_Granite, logit_scale="divides", whole_head_rope=True)
_QwenHybrid = partial(
    Architecture, qk_norm="head", ffn_norm="post_attention_norm", output_gate="attn_q"
)
_LFM2 = partial(
    _Whole,
    qk_norm="head",
    recurrent="short convolution",
    counts_kv_heads=True,
    output_norm="token_embd_norm",
)
_GATED = ExpertRules(shared="gated")
_GLM_EXPERTS = ExpertRules(
    scores="sigmoid",
    reads_scores=True,
    normalised="as the file says",
    choice_bias="required",
    shared="added",
)

_DENSE = (
    _Llama("mistral3", rope_tensors="by scaling", temperature=True),
    _Whole("qwen2"),
    _Whole("qwen3", qk_norm="head"),
    # Text has one position in all sections of qwen3vl's rotation, so it rotates as qwen3 does.
    # (llama.cpp leaves the pairs alone that no section reaches: 61 and 62 of 64.)
    _Whole("qwen3vl", qk_norm="head"),
    # phi3 files name a sliding window that llama.cpp does not apply (its pull request 13676).
    Architecture("phi3", fused_gate_up=True, rope_tensors="longrope"),
    _LayerNormed("phi2", activation="gelu", gated=False, parallel="always"),
    _Gemma("gemma", tied=True),
    _Gemma(
        "gemma2",
        post_norms=True,
        tied=True,
        attention_softcap=50.0,
        final_softcap=30.0,
        windowing=Windowing(period=2, window=4096),
        scale_by_embedding_at=46,
    ),
    _Gemma3(
        "gemma3",
        windowing=Windowing(period=6, rope_base=10_000.0, scaled="amplitude"),
        scale_by_embedding_at=62,
    ),
    _Cohere("command-r", qk_norm="each head"),
    _Cohere(
        "cohere2",
        windowing=Windowing(period=4, required=True, reads_base=False),
        rope_layers="windowed",
    ),
    _Llama("smollm3", rope_layers="three of four"),
    _GraniteWhole("granite"),
    # olmo2 files with a window are Olmo 3.
    _Whole(
        "olmo2",
        qk_norm="row",
        pre_norms=False,
        post_norms=True,
        windowing=Windowing(period=4, scaled="none", reads_base=False),
    ),
    _Whole(
        "exaone4",
        qk_norm="head",
        pre_norms=False,
        post_norms=True,
        windowing=Windowing(period=4, window=4096, reads_base=False, only_at=64),
        rope_layers="windowed",
        rope_tensors="freqs",
    ),
    Architecture("glm4", rope="normal", fused_gate_up=True, post_norms=True),
    _Whole("seed_oss", ffn_norm="post_attention_norm"),
    _Llama("ernie4_5"),
    _Whole("hunyuan-dense", qk_norm="head", qk_norm_after_rope=True, rope_alpha=True),
    _LayerNormed("starcoder2", activation="gelu", gated=False, whole_head_rope=True),
    _LayerNormed("stablelm", qk_norm="each head", parallel="without ffn_norm"),
    _LayerNormed("nemotron", activation="relu-squared", gated=False),
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
    ),
)

_WITH_EXPERTS = (
    # With experts: Mixtral.
    _Llama(
        "llama",
        rope_tensors="by scaling",
        experts=ExpertRules(required=False, separate_length=False),
    ),
    _Whole("qwen2moe", experts=ExpertRules(normalised=False, shared="gated")),
    _Whole("qwen3moe", qk_norm="head", experts=ExpertRules()),
    _Whole("olmoe", qk_norm="row", experts=ExpertRules(separate_length=False, normalised=False)),
    _Gemma3(
        "gemma4",
        windowing=Windowing(
            period=6,
            required=True,
            rope_base=10_000.0,
            scaled="none",
            factors=False,
            heads="keys and values",
        ),
        rope_tensors="freqs",
        attention_scale=1.0,
        value_norm=True,
        shared_kv=True,
        per_layer_embeddings=True,
        output_scale=True,
        experts=ExpertRules(required=False, beside_dense=True),
    ),
    _Whole(
        "gpt-oss",
        activation="clamped-silu",
        ffn_norm="post_attention_norm",
        windowing=Windowing(period=2, required=True),
        attention_sinks=True,
        experts=ExpertRules(scores="softmax-of-chosen", normalised=False, biases=True),
    ),
    _Llama("ernie4_5-moe", experts=ExpertRules(choice_bias="optional", shared="added")),
    _GraniteWhole("granitemoe", experts=ExpertRules(separate_length=False, shared="added")),
    Architecture(
        "glm4moe",
        qk_norm="head, if present",
        ffn_norm="post_attention_norm",
        experts=_GLM_EXPERTS,
    ),
    Architecture(
        "laguna",
        qk_norm="head",
        output_gate="attn_gate",
        softplus_gate=True,
        windowing=Windowing(period=4, scaled="none", heads="queries", global_first=True),
        experts=_GLM_EXPERTS,
    ),
    # DeepSeek V2 and V3, and those that took their attention.
    Architecture(
        "deepseek2",
        rope="normal",
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
)

_WITH_STATES = (
    _QwenHybrid("qwen3next", recurrent="grouped delta net", experts=_GATED),
    # Text has one position in all sections of qwen35's rotation.
    _QwenHybrid("qwen35", recurrent="delta net"),
    _QwenHybrid("qwen35moe", recurrent="delta net", experts=_GATED),
    _LFM2("lfm2"),
    _LFM2("lfm2moe", experts=ExpertRules(reads_scores=True, choice_bias="optional")),
    # With experts: nemotron_h_moe. A layer is a mixer or a feed-forward.
    *(
        Architecture(
            name,
            activation="relu-squared",
            gated=False,
            recurrent="mamba 2",
            counts_kv_heads=True,
            rope_layers="none",
            either_epsilon=True,
            experts=ExpertRules(
                required=False,
                scores="sigmoid",
                normalised="as the file says",
                choice_bias="required",
                shared="added",
                latent=True,
                in_own_layers=True,
            ),
        )
        for name in ("nemotron_h", "nemotron_h_moe")
    ),
    Architecture("falcon-h1", recurrent="mamba 2 beside attention"),
    _Granite(
        "granitehybrid",
        logit_scale="divides, if present",
        recurrent="mamba 2",
        counts_kv_heads=True,
        experts=ExpertRules(required=False, separate_length=False, shared="added"),
    ),
)

# They read texts in both directions, and give hidden states.
_Bert = partial(_LayerNormed, adds_to_normed=True, ffn_norm="attn_output_norm")
_TEXT_ENCODERS = (
    _Bert("bert", activation="gelu", gated=False, rope_layers="none"),  # a table of positions
    _Bert("nomic-bert"),
    _Bert(
        "nomic-bert-moe",
        activation="gelu",
        gated=False,
        experts=ExpertRules(separate_length=False, normalised=False, periodic=True),
    ),
    _LayerNormed(
        "modern-bert",
        activation="gelu",
        fused_gate_up=True,
        windowing=Windowing(period=3, rope_base=10_000.0, global_first=True),
    ),
    _Gemma(
        "gemma-embedding",
        qk_norm="head",
        post_norms=True,
        windowing=Windowing(period=6, rope_base=10_000.0),
    ),
)


def _by_name(*architectures: Architecture) -> dict[str, Architecture]:
    return {architecture.name: architecture for architecture in architectures}


ARCHITECTURES = _by_name(*_DENSE, *_WITH_EXPERTS, *_WITH_STATES)
TEXT_ENCODERS = _by_name(*_TEXT_ENCODERS)
