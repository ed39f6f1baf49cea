"""The part of the table of architectures whose layers carry states. Imports no Numba."""

from __future__ import annotations

from .architecture import Architecture
from .expert_keys import ExpertRules

HYBRIDS: tuple[Architecture, ...] = (
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
            counts_kv_heads=True,
            output_norm="token_embd_norm",
            experts=experts,
        )
        for name, experts in (
            ("lfm2", None),
            ("lfm2moe", ExpertRules(reads_scores=True, choice_bias="optional")),
        )
    ),
    # With experts: nemotron_h_moe. A layer is a mixer or a feed-forward.
    *(
        Architecture(
            name,
            rope="neox",
            activation="relu-squared",
            gated=False,
            recurrent="mamba 2",
            counts_kv_heads=True,
            rope_layers="none",
            either_epsilon=True,
            whole_head_rope=False,
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
    Architecture(
        "falcon-h1",
        rope="neox",
        recurrent="mamba 2 beside attention",
        whole_head_rope=False,
    ),
    Architecture(
        "granitehybrid",
        rope="normal",
        scales=True,
        logit_scale="divides, if present",
        recurrent="mamba 2",
        counts_kv_heads=True,
        rope_layers="all or none",
        whole_head_rope=False,
        rope_tensors="by scaling",
        experts=ExpertRules(required=False, separate_length=False, shared="added"),
    ),
)
