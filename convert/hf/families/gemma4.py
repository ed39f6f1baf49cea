"""gemma4: two kinds of heads, shared keys and values, embeddings of each layer, experts; text."""

from __future__ import annotations

from gguf import GGUFWriter

from ...errors import ConvertError
from ..architecture import HFArchitecture
from ..config import Config
from ..metadata.keys import add_dense
from ..metadata.layers import add_windows, windowed_layers
from .experts import add_experts

_LAYER = r"model\.layers\.(\d+)"


def add_keys(writer: GGUFWriter, config: Config) -> None:
    """`gemma4.*`."""
    if config.get("use_bidirectional_attention") == "all":
        raise ConvertError("config.json: use_bidirectional_attention: expected a causal model")
    windowed = windowed_layers(config, 6)
    n_shared, n_ff = config.integer("num_kv_shared_layers"), config.integer("intermediate_size")
    lengths: int | list[int] = n_ff
    if config.flag("use_double_wide_mlp"):
        first = config.n_layers - n_shared
        lengths = [n_ff if i < first else 2 * n_ff for i in range(config.n_layers)]
    add_dense(writer, config, lengths)
    if (n_global := config.of_global_layers("num_key_value_heads")) is not None:
        writer.add_head_count_kv([config.n_kv_heads if w else n_global for w in windowed])
    if softcap := config.optional_number("final_logit_softcapping"):
        writer.add_final_logit_softcapping(softcap)
    add_windows(writer, config, windowed)
    writer.add_shared_kv_layers(n_shared)
    n_per_layer = config.optional_integer("hidden_size_per_layer_input")
    writer.add_embedding_length_per_layer_input(n_per_layer)
    length = config.head_dim
    n_whole = config.of_global_layers("head_dim") or length
    writer.add_key_length(n_whole)
    writer.add_value_length(n_whole)
    writer.add_key_length_swa(length)
    writer.add_value_length_swa(length)
    writer.add_rope_dimension_count(n_whole)
    local = config.rope.get("local", {})
    writer.add_rope_dimension_count_swa(config.share_of_head(local.get("partial_rotary_factor")))
    if config.flag("enable_moe_block"):
        add_experts(writer, config, used="top_k_experts")
        writer.add_expert_feed_forward_length(config.integer("moe_intermediate_size"))


ENTRY = HFArchitecture(
    "gemma4",
    add_keys,
    renames=(
        (rf"{_LAYER}\.router\.scale", r"blk.\1.ffn_gate_inp.scale"),
        (rf"{_LAYER}\.router\.per_expert_scale", r"blk.\1.ffn_down_exps.scale"),
        (rf"{_LAYER}\.layer_scalar", r"blk.\1.layer_output_scale.weight"),
        (rf"({_LAYER}\.experts\..+?)(\.weight)?", r"\1.weight"),
    ),
    activation="hidden_activation",
    drops_output=True,
    vocabulary="gemma4",
    added_tokens_as_listed=True,
)
