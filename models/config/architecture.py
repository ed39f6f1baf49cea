"""What an architecture is: its differences from most others, each a field that one place reads."""

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
    heads: Literal["alike", "keys and values", "queries"] = "alike"
    """Whether windowed layers have a number of KV heads and a head size of their own
    (`attention.head_count_kv` for each layer, `attention.key_length_swa`), or a number of query
    heads (`attention.head_count` for each layer); either way a rotated part
    (`rope.dimension_count_swa`)."""
    global_first: bool = False
    """The first of each `period` layers is global, not the last."""
    reads_base: bool = True
    """Whether windowed layers rotate by `rope.freq_base_swa` where a file has it."""
    only_at: int | None = None
    """Only models of this number of layers have windowed layers."""


@dataclass(frozen=True)
class Architecture:
    """One GGUF architecture (`general.architecture`), by its differences from most others."""

    name: str
    rope: Literal["normal", "neox"] = "neox"
    """Rotated pairs: neighbours (2i, 2i+1), or halves (i, i + n_rot/2)."""
    norm: Literal["rms", "layer"] = "rms"
    either_epsilon: bool = False
    """Files may leave out the epsilon of RMS norms, which is then that of layer norms."""
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
    adds_to_normed: bool = False
    """What attention and feed-forward give is added to their normed inputs, so that a layer ends
    with the norm of the next one's input (`token_embd_norm`, `layer_output_norm`)."""
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
    softplus_gate: bool = False
    """The gate's softplus takes the place of its sigmoid; `attn_gate` has a row for each element of
    the heads, or one for each head."""
    embedding_norm: bool = False
    """RMS norm, without a weight, of embeddings."""
    scaled_embedding: bool = False
    """Embeddings are multiplied by sqrt(n_embd)."""
    recurrent: Literal[
        "none",
        "delta net",
        "grouped delta net",
        "short convolution",
        "mamba 2",
        "mamba 2 beside attention",
    ] = "none"
    """What layers without attention have in its place; the file says which layers these are.
    Grouped: the value heads that share a key head, and their gates, stand side by side. Beside: all
    layers have both."""
    counts_kv_heads: bool = False
    """Layers without attention are those for which `attention.head_count_kv` is 0."""
    output_norm: str = "output_norm"
    """The tensor of the norm of the last layer's output."""
    scales: bool = False
    """`embedding_scale`, `residual_scale` (of what a layer adds to x) and `attention.scale`."""
    logit_scale: Literal["none", "multiplies", "divides", "divides, if present"] = "none"
    """What `logit_scale` does to the logits."""
    attention_softcap: float = 0.0
    """Default of `attn_logit_softcapping`; 0 where the architecture has none."""
    final_softcap: float | None = None
    """Default of `final_logit_softcapping`; None where the architecture has none."""
    windowing: Windowing | None = None
    rope_layers: Literal["all", "windowed", "three of four", "all or none", "none"] = "all"
    """Layers that rotate; "windowed": all layers of a model without windows; "all or none": none
    where `rope.scaling.finetuned` is false."""
    rope_tensors: Literal["none", "freqs", "longrope", "by scaling"] = "none"
    """Frequency factors in tensors: rope_freqs, rope_factors_long/short, or by the scaling type."""
    whole_head_rope: bool = False
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
    latent: bool = False
    """Keys and values are one compressed row, which all heads share (`attention.kv_lora_rank`)."""
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

    @property
    def norms_in_place(self) -> bool:
        """Whether x is its own normed input."""
        return not self.pre_norms or self.adds_to_normed
