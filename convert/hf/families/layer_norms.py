"""The metadata of architectures with layer norms, as in `metadata.keys`."""

from __future__ import annotations

from gguf import GGUFWriter, RopeScalingType

from ..config import Config
from ..metadata.keys import add_head_dim, add_sizes, add_unscaled
from ..metadata.rope import add_rope


def _add_layer_normed(writer: GGUFWriter, config: Config, eps: str = "layer_norm_eps") -> None:
    """The keys that families with layer norms share."""
    add_sizes(writer, config)
    add_rope(writer, config)
    writer.add_layer_norm_eps(config.number(eps))


def add_starcoder2(writer: GGUFWriter, config: Config) -> None:
    """`starcoder2.*`; readers know no windows in it, and neither do its files."""
    _add_layer_normed(writer, config, "norm_epsilon")


def add_stablelm(writer: GGUFWriter, config: Config) -> None:
    """`stablelm.*`."""
    _add_layer_normed(writer, config)
    writer.add_rope_dimension_count(config.rotated_dims)
    writer.add_parallel_residual(config.flag("use_parallel_residual"))


def add_nemotron(writer: GGUFWriter, config: Config) -> None:
    """`nemotron.*`: Nemotron 4 and Minitron."""
    _add_layer_normed(writer, config, "norm_eps")
    if config.get("head_dim") is not None:
        add_head_dim(writer, config)
    writer.add_vocab_size(config.integer("vocab_size"))
    writer.add_rope_dimension_count(config.rotated_dims)
    if config.rope["rope_type"] == "default":
        writer.add_rope_scaling_type(RopeScalingType.NONE)


def add_phi2(writer: GGUFWriter, config: Config) -> None:
    """`phi2.*`: Phi 1, 1.5 and 2."""
    _add_layer_normed(writer, config)
    writer.add_rope_dimension_count(config.rotated_dims)


def add_command_r(writer: GGUFWriter, config: Config) -> None:
    """`command-r.*`: Command R and R+, Aya 23."""
    # Command R was trained on more than max_position_embeddings.
    n_ctx = "model_max_length" if config.get("model_max_length") else "max_position_embeddings"
    add_sizes(writer, config, n_ctx=config.integer(n_ctx))
    add_unscaled(writer, config)
    writer.add_layer_norm_eps(config.number("layer_norm_eps"))
    writer.add_logit_scale(config.number("logit_scale"))
    writer.add_rope_scaling_type(RopeScalingType.NONE)
