"""The metadata of each architecture, as llama.cpp's converter writes it.

Every `add_…` takes the writer of the file and the model's configuration. It raises `ConvertError`
for settings that the format does not have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gguf import GGUFWriter, RopeScalingType

from ....models.config.architectures import ARCHITECTURES
from ...errors import ConvertError
from ..config import Config, number
from ..files.jsons import brief
from .layers import add_periodic_windows, add_windows, windowed_layers
from .rope import add_rope, add_scaling


def add_sizes(
    writer: GGUFWriter,
    config: Config,
    n_ctx: int | None = None,
    n_ff: int | list[int] | None = None,
) -> None:
    """Layers, context, widths and heads; n_ff, of each layer or of all: if not as it stands."""
    writer.add_block_count(config.n_layers)
    writer.add_context_length(n_ctx or config.integer("max_position_embeddings"))
    writer.add_embedding_length(config.integer("hidden_size"))
    experts = ARCHITECTURES[writer.arch].experts
    # Where only experts have a length, none of them has this one.
    if n_ff is not None or experts is None or config.get("intermediate_size") is not None:
        writer.add_feed_forward_length(n_ff or config.integer("intermediate_size"))
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)


def add_head_dim(writer: GGUFWriter, config: Config) -> None:
    """The size of a head, for keys and for values."""
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)


def add_dense(
    writer: GGUFWriter,
    config: Config,
    n_ff: int | list[int] | None = None,
    eps: str = "rms_norm_eps",
) -> None:
    """The keys that most families share. n_ff: see `add_sizes`. eps: the key of norms' epsilon."""
    add_sizes(writer, config, n_ff=n_ff)
    add_rope(writer, config)
    writer.add_layer_norm_rms_eps(config.number(eps))


def add_base(writer: GGUFWriter, config: Config) -> None:
    """The base frequency alone, of files whose positions are not scaled."""
    writer.add_rope_freq_base(number(config.rope, "rope_theta", "config.json"))


def add_unscaled(writer: GGUFWriter, config: Config) -> None:
    """The base frequency; `ConvertError` for positions that are scaled."""
    if config.rope.get("rope_type", "default") != "default":
        raise ConvertError(f"config.json: rope_type is set, which {writer.arch} does not have")
    add_base(writer, config)


def add_llama(writer: GGUFWriter, config: Config, *, with_head_dim: bool = True) -> None:
    """`llama.*`: Llama and Mistral."""
    add_dense(writer, config)
    if with_head_dim:
        add_head_dim(writer, config)
    _add_vocabulary(writer, config)


def _add_vocabulary(writer: GGUFWriter, config: Config) -> None:
    writer.add_vocab_size(config.integer("vocab_size"))
    writer.add_rope_dimension_count(config.head_dim)


def add_mistral3(writer: GGUFWriter, config: Config) -> None:
    """`mistral3.*`: Ministral 3 and what Mistral makes since."""
    add_llama(writer, config)
    if config.get("model_type") != "ministral3":
        return
    if config.rope.get("rope_type") != "yarn":
        raise ConvertError("config.json: rope_type of ministral3 is not yarn")
    beta = number(config.rope, "llama_4_scaling_beta", "rope_parameters")
    writer.add_attn_temperature_scale(beta)


def add_smollm3(writer: GGUFWriter, config: Config) -> None:
    """`smollm3.*`; every fourth layer knows no positions, which the file does not say."""
    add_qwen(writer, config)
    _add_vocabulary(writer, config)
    rotated = config.get("no_rope_layers")
    if rotated is not None and rotated != [int((i + 1) % 4 != 0) for i in range(config.n_layers)]:
        raise ConvertError(
            f"config.json: no_rope_layers is {brief(rotated)}: a smollm3 file has positions in all "
            "but every fourth layer"
        )


def add_qwen(writer: GGUFWriter, config: Config) -> None:
    """`qwen2.*`, `qwen3.*`."""
    add_dense(writer, config)
    if config.get("head_dim") is not None:
        add_head_dim(writer, config)


def add_qwen3vl(writer: GGUFWriter, config: Config) -> None:
    """`qwen3vl.*`, the text part."""
    add_qwen(writer, config)
    add_sections(writer, config, [24, 20, 20])
    vision = config.get("vision_config")
    layers = vision.get("deepstack_visual_indexes") if isinstance(vision, Mapping) else None
    writer.add_num_deepstack_layers(len(layers) if isinstance(layers, list) else 0)


def add_sections(writer: GGUFWriter, config: Config, default: list[int]) -> None:
    """Pairs of a head that rotate by time, height and width; text has one position in all."""
    sections = config.rope.get("mrope_section", default)
    if not isinstance(sections, list) or not all(type(n) is int and n >= 0 for n in sections):
        raise ConvertError(f"config.json: mrope_section is {brief(sections)}, expected sizes")
    writer.add_rope_dimension_sections([*sections, 0, 0, 0, 0][:4])


_SCALES = {
    "attention_multiplier": GGUFWriter.add_attention_scale,
    "embedding_multiplier": GGUFWriter.add_embedding_scale,
    "residual_multiplier": GGUFWriter.add_residual_scale,
    "logits_scaling": GGUFWriter.add_logit_scale,
}


def add_granite(writer: GGUFWriter, config: Config) -> None:
    """`granite.*`: Granite 3 and 4 without experts."""
    add_dense(writer, config)
    _add_vocabulary(writer, config)
    for key, add in _SCALES.items():
        add(writer, config.number(key))


def add_olmo2(writer: GGUFWriter, config: Config) -> None:
    """`olmo2.*`: Olmo 2, and Olmo 3 with its windows."""
    add_dense(writer, config)
    if config.get("sliding_window") is not None:
        add_windows(writer, config, windowed_layers(config, 4))


def add_glm4(writer: GGUFWriter, config: Config) -> None:
    """`glm4.*`."""
    add_qwen(writer, config)
    writer.add_rope_dimension_count(config.rotated_dims)


def add_exaone4(writer: GGUFWriter, config: Config) -> None:
    """`exaone4.*`."""
    add_qwen(writer, config)
    writer.add_vocab_size(config.integer("vocab_size"))
    if config.get("sliding_window") is None:
        return
    windowing = ARCHITECTURES["exaone4"].windowing
    assert windowing is not None
    windowed = windowed_layers(config, windowing.period)
    if any(windowed) != (config.n_layers == windowing.only_at):
        raise ConvertError(
            f"config.json: {sum(windowed)} of {config.n_layers} layers have windows: an exaone4 "
            f"file has them in {windowing.only_at} layers, and in no others"
        )
    add_windows(writer, config, windowed)


HUNYUAN_CONTEXT = 262_144
"""Tokens that Hunyuan's scaled base is for; its config.json says 32,768."""


def add_hunyuan(writer: GGUFWriter, config: Config) -> None:
    """`hunyuan-dense.*`; an `alpha` goes into the base, as in llama.cpp's converter."""
    alpha = config.rope.get("alpha")
    if config.rope["rope_type"] != "dynamic" or alpha is None:
        add_qwen(writer, config)
        return
    n = config.head_dim
    if n < 4:
        raise ConvertError(f"config.json: heads of {n} with alpha, expected 4 or more")
    where = "config.json's rope parameters"
    base, alpha = number(config.rope, "rope_theta", where), number(config.rope, "alpha", where)
    if not (base > 0 and alpha > 0):
        raise ConvertError(f"{where}: rope_theta {base:g}, alpha {alpha:g}: expected more than 0")
    add_sizes(writer, config, n_ctx=HUNYUAN_CONTEXT)
    writer.add_rope_freq_base(base * math.pow(alpha, n / (n - 2)))
    writer.add_rope_scaling_type(RopeScalingType.NONE)
    writer.add_rope_scaling_factor(1)
    writer.add_rope_scaling_orig_ctx_len(HUNYUAN_CONTEXT)
    writer.add_layer_norm_rms_eps(config.number("rms_norm_eps"))
    if config.get("head_dim") is not None:
        add_head_dim(writer, config)


def add_gemma(writer: GGUFWriter, config: Config) -> None:
    """`gemma.*`: the first Gemma, and CodeGemma."""
    _add_gemma_sizes(writer, config)
    _add_unusual_rope(writer, config)


def _add_gemma_sizes(writer: GGUFWriter, config: Config) -> None:
    add_sizes(writer, config)
    writer.add_layer_norm_rms_eps(config.number("rms_norm_eps"))
    add_head_dim(writer, config)


def _add_unusual_rope(writer: GGUFWriter, config: Config) -> None:
    """The rotation, where it is not what readers take if the file says nothing."""
    add_scaling(writer, config)
    if config.rope.get("rope_theta") != 10_000.0:
        add_base(writer, config)


def add_phi3(writer: GGUFWriter, config: Config) -> None:
    """`phi3.*`: Phi 3, 3.5 and 4 (but for mixtures of experts)."""
    add_sizes(writer, config)
    writer.add_rope_scaling_orig_ctx_len(config.integer("original_max_position_embeddings"))
    writer.add_layer_norm_rms_eps(config.number("rms_norm_eps"))
    writer.add_rope_dimension_count(config.rotated_dims)
    add_rope(writer, config)
    # 0 is how readers tell Phi 4 from the others.
    writer.add_sliding_window(config.optional_integer("sliding_window"))


def add_gemma2(writer: GGUFWriter, config: Config) -> None:
    """`gemma2.*`."""
    _check_query_scale(config, "gemma2")
    _add_gemma_sizes(writer, config)
    writer.add_attn_logit_softcapping(config.optional_number("attn_logit_softcapping"))
    writer.add_final_logit_softcapping(config.optional_number("final_logit_softcapping"))
    add_periodic_windows(writer, config)
    _add_unusual_rope(writer, config)


def add_gemma3(writer: GGUFWriter, config: Config) -> None:
    """`gemma3.*`, the text part of models that see."""
    _check_query_scale(config, "gemma3")
    add_dense(writer, config)
    add_head_dim(writer, config)
    if softcap := config.optional_number("final_logit_softcapping"):
        writer.add_final_logit_softcapping(softcap)
    if any(windowed_layers(config, 6)):
        add_periodic_windows(writer, config)


def add_cohere2(writer: GGUFWriter, config: Config) -> None:
    """`cohere2.*`: Command R7B and A."""
    add_sizes(writer, config)
    add_unscaled(writer, config)
    writer.add_layer_norm_eps(config.number("layer_norm_eps"))
    add_head_dim(writer, config)
    writer.add_logit_scale(config.number("logit_scale"))
    add_periodic_windows(writer, config)
    writer.add_vocab_size(config.integer("vocab_size"))
    writer.add_rope_dimension_count(config.share_of_head(config.get("rotary_pct")))
    writer.add_rope_scaling_type(RopeScalingType.NONE)


def _check_query_scale(config: Config, name: str) -> None:
    """Refuse another scale than the readers': 1/sqrt(head_dim), or by n_embd at one n_layers."""
    expected = config.head_dim
    if config.n_layers == ARCHITECTURES[name].scale_by_embedding_at:
        expected = config.integer("hidden_size") // config.n_heads
    scalar = config.number("query_pre_attn_scalar")
    if scalar != expected:
        raise ConvertError(
            f"config.json: query_pre_attn_scalar is {scalar:g}: a {name} file of {config.n_layers} "
            f"layers means {expected}"
        )
