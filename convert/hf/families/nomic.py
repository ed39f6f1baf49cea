"""NomicBERT: nomic-embed-text v1 and v1.5, and v2 with experts; as llama.cpp's converter has them.

One thing differs: a vector that is added to the sum of a layer's experts is kept where it is not
zero (`blk.N.ffn_exps.bias`). llama.cpp's converter drops it, which changes the vectors.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gguf import GGUFWriter

from ...errors import ConvertError
from ..architecture import HFArchitecture
from ..config import Config
from ..metadata.keys import add_base
from ..views import View, Views, reshaped, transposed
from .experts import count
from .text_encoders import add_encoder_norms, add_encoder_sizes, tensors

# n_positions of config.json where max_trained_positions is 2,048, and the context of the file.
_TRAINED = {8192: 2048, 2048: 512}
_OF_EXPERTS = re.compile(r"encoder\.layers\.(\d{1,4})\.mlp\.experts\.(mlp\.w1|mlp\.w2|bias)")


def _period(config: Config) -> int:
    """Of so many layers the second has experts; 0: none has."""
    return config.optional_integer("moe_every_n_layers")


def choose(config: Config, entry: HFArchitecture) -> HFArchitecture:
    """The entry; with another name for models that have experts."""
    return replace(entry, name="nomic-bert-moe") if _period(config) else entry


def add_nomic(writer: GGUFWriter, config: Config) -> None:
    """`nomic-bert.*`, `nomic-bert-moe.*`; `ConvertError` for settings that these cannot have."""
    activation = "gelu" if _period(config) else "swiglu"
    if config.get("hidden_act") != activation:
        raise config.refused("activation_function", activation, writer.arch)
    n_ctx = config.integer("max_position_embeddings")
    if config.optional_integer("max_trained_positions") == 2048:
        n_ctx = _TRAINED.get(n_ctx, n_ctx)
    add_encoder_sizes(writer, config, n_ctx)
    add_base(writer, config)
    add_encoder_norms(writer, config)
    if _period(config):
        writer.add_expert_count(count(config))
        writer.add_expert_used_count(config.integer("moe_top_k"))
        writer.add_moe_every_n_layers(_period(config))


def nomic_tensors(config: Config, views: Views) -> dict[str, View]:
    """The tensors of an encoder, experts stacked: ups and downs of all of a layer are one matrix,
    downs transposed."""
    made: dict[str, View] = {}
    n, n_ff = count(config), config.integer("intermediate_size")
    n_embd = config.integer("hidden_size")
    for name, view in tensors(config, views).items():
        if (match := _OF_EXPERTS.fullmatch(name)) is None:
            made[name] = view
            continue
        prefix, end = f"blk.{match[1]}", match[2]
        expected = (n_embd,) if end == "bias" else (n * n_ff, n_embd)
        if view.shape != expected or not n:
            raise ConvertError(f"tensor {name} has shape {view.shape}, expected {expected}")
        if end == "mlp.w1":
            made[f"{prefix}.ffn_up_exps.weight"] = reshaped(view, n, n_ff, n_embd)
        elif end == "mlp.w2":
            made[f"{prefix}.ffn_down_exps.weight"] = transposed(reshaped(view, n, n_ff, n_embd))
        elif view.rows(0, 1).any():
            made[f"{prefix}.ffn_exps.bias"] = view
    return made


ENTRY = HFArchitecture(
    "nomic-bert",
    add_nomic,
    encodes=True,
    vocabulary="bert",
    rewrite=nomic_tensors,
    choose=choose,
    also=("nomic-bert-moe",),
    fixed={
        "causal": False,
        "prenorm": False,
        "parallel_block": False,
        "use_rms_norm": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "scale_attn_weights": True,
        "moe_normalize_expert_weights": False,
        "expert_choice_router": False,
        "num_shared_experts": 0,
        "ffn_div": 1,
    },
)
