"""The table of architectures: the differences between transformers, as data.

One forward pass (`transformer.py`) serves all architectures. A new one is one entry here, as long
as its differences are fields of `Architecture`. Source: llama.cpp (`src/models/*.cpp` as packaged
in llama-cpp-python 0.3.36), whose results kvarn has to match. Imports no Numba.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .expert_keys import ExpertRules


@dataclass(frozen=True)
class Windowing:
    """Which layers have a sliding window, and how they rotate positions.

    Of each `period` layers the first `period - 1` are windowed and the last is global. A file's
    `attention.sliding_window_pattern` (a number, or one flag per layer) overrides the period.
    """

    period: int
    window: int | None = None
    """Default window; None: a file that names no window has no windowed layers."""
    required: bool = False
    """Whether a file must name its window."""
    rope_base: float | None = None
    """Default rope base of windowed layers; None: that of the global layers."""
    scaled: Literal["all", "amplitude", "none"] = "all"
    """What of the scaling of positions applies to windowed layers: all of it, the amplitude of
    `rope.scaling.attn_factor` alone, or nothing."""
    factors: bool = True
    """Whether frequency factors in tensors apply to windowed layers."""
    heads: bool = False
    """Whether windowed layers have a number of KV heads, a head size and a rotated part of their
    own: `attention.head_count_kv` for each layer, `attention.key_length_swa` and
    `rope.dimension_count_swa`."""
    reads_base: bool = True
    """Whether windowed layers rotate by `rope.freq_base_swa` where a file has it."""
    only_at: int | None = None
    """Only models of this number of layers have windowed layers."""


@dataclass(frozen=True)
class Architecture:
    """One GGUF architecture (`general.architecture`), by its differences from llama."""

    name: str
    rope: Literal["normal", "neox"]
    """Rotated pairs: neighbours (2i, 2i+1), or halves (i, i + n_rot/2)."""
    norm: Literal["rms", "layer"] = "rms"
    activation: Literal["silu", "gelu", "relu-squared", "clamped-silu"] = "silu"
    gated: bool = True
    """The feed-forward multiplies what it activates (`ffn_gate`) by `ffn_up`."""
    qk_norm: Literal["none", "head", "head, if present", "row", "each head"] = "none"
    """Norms of queries and keys: RMS norm of each head, or of all heads of a token at once; or
    layer norm of each head with a weight of its own, in files that have them."""
    qk_norm_after_rope: bool = False
    """Norms of queries and keys follow rope; otherwise they precede it."""
    pre_norms: bool = True
    """Norms of the inputs of attention and feed-forward."""
    ffn_norm: str = "ffn_norm"
    """The tensor of the norm of the feed-forward's input."""
    post_norms: bool = False
    """Norms of the outputs of attention and feed-forward, before they are added to x."""
    post_norm_eps: float | None = None
    """Epsilon of the norms of outputs; None: that of all norms."""
    parallel: Literal["never", "always", "without ffn_norm"] = "never"
    """Attention and feed-forward read the same normed input, and both outputs are added to x; in
    some architectures in files that have no norm for the feed-forward."""
    fused_gate_up: bool = False
    """`ffn_up` has the rows of gate, then those of up."""
    tied: bool = False
    """The output matrix is always the embedding; otherwise only where a file has no other."""
    output_gate: Literal["none", "attn_gate", "attn_q"] = "none"
    """What attention mixed is multiplied by the sigmoid of a gate: the product of `attn_gate`, or
    of rows of `attn_q` that follow those of each head."""
    embedding_norm: bool = False
    """RMS norm, without a weight, of embeddings."""
    scaled_embedding: bool = False
    """Embeddings are multiplied by sqrt(n_embd)."""
    recurrent: Literal["none", "delta net", "grouped delta net", "short convolution"] = "none"
    """What layers without attention have in its place; the file says which layers these are.
    Grouped: the value heads that share a key head, and their gates, stand side by side."""
    output_norm: str = "output_norm"
    """The tensor of the norm of the last layer's output."""
    scales: bool = False
    """`embedding_scale`, `residual_scale` (of what a layer adds to x) and `attention.scale`."""
    logit_scale: Literal["none", "multiplies", "divides"] = "none"
    """What `logit_scale` does to the logits."""
    attention_softcap: float = 0.0
    """Default of `attn_logit_softcapping`; 0 where the architecture has none."""
    final_softcap: float | None = None
    """Default of `final_logit_softcapping`; None where the architecture has none."""
    windowing: Windowing | None = None
    rope_layers: Literal["all", "windowed", "three of four"] = "all"
    """Layers that rotate; "windowed": all layers of a model without windows."""
    rope_tensors: Literal["none", "freqs", "longrope", "by scaling"] = "none"
    """Frequency factors in tensors: rope_freqs, rope_factors_long/short, or by the scaling type."""
    whole_head_rope: bool = True
    """Rope must rotate the whole head."""
    rope_alpha: bool = False
    """`rope.scaling.alpha` multiplies the base by alpha^(E / (E - 2))."""
    scale_by_embedding_at: int | None = None
    """At this number of layers attention is scaled by 1/sqrt(n_embd/n_heads), not 1/sqrt(E)."""
    attention_scale: float | None = None
    """Factor on q·k; None: 1/sqrt(E)."""
    value_norm: bool = False
    """RMS norm, without a weight, of each head's value; a layer without `attn_v` takes what
    `attn_k` gives, before its norm, for values."""
    shared_kv: bool = False
    """The last `attention.shared_kv_layers` layers attend to keys and values of earlier ones."""
    per_layer_embeddings: bool = False
    """Each layer adds what it makes of an embedding of its own of each token, in files that have
    some (`embedding_length_per_layer_input`)."""
    output_scale: bool = False
    """A file may have a factor on each layer's output (`layer_output_scale`)."""
    attention_sinks: bool = False
    """Each head has a learned score that belongs to no token (`attn_sinks`)."""
    experts: ExpertRules | None = None
    """None: the architecture has no routed experts."""
    temperature: bool = False
    """Queries may be scaled up by position (`attention.temperature_scale`)."""


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
                heads=True,
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
        Architecture(
            "qwen3next",
            rope="neox",
            qk_norm="head",
            ffn_norm="post_attention_norm",
            output_gate="attn_q",
            recurrent="grouped delta net",
            whole_head_rope=False,
            experts=ExpertRules(shared="gated"),
        ),
        # Text has one position in all sections of qwen35's rotation.
        *(
            Architecture(
                name,
                rope="neox",
                qk_norm="head",
                ffn_norm="post_attention_norm",
                output_gate="attn_q",
                recurrent="delta net",
                whole_head_rope=False,
                experts=experts,
            )
            for name, experts in (("qwen35", None), ("qwen35moe", ExpertRules(shared="gated")))
        ),
        *(
            Architecture(
                name,
                rope="neox",
                qk_norm="head",
                recurrent="short convolution",
                output_norm="token_embd_norm",
                experts=experts,
            )
            for name, experts in (
                ("lfm2", None),
                ("lfm2moe", ExpertRules(reads_scores=True, choice_bias="optional")),
            )
        ),
    )
}
