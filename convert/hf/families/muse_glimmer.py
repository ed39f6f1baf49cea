"""What a muse-glimmer file has that others have not, as llama.cpp's converter writes it."""

from __future__ import annotations

import numpy as np
from gguf import GGUFWriter

from ....ops.arrays import F32
from ...errors import ConvertError
from ..config import Config, number
from ..files.jsons import brief
from ..metadata.keys import add_qwen
from ..metadata.layers import add_windows, windowed_layers


def add_keys(writer: GGUFWriter, config: Config) -> None:
    """`muse-glimmer.*`, the text part."""
    add_qwen(writer, config)
    types = config.get("layer_types")
    windowed = [(config.n_layers - 1 - i) % 4 != 0 for i in range(config.n_layers)]
    if types is not None:
        windowed = windowed_layers(config, 4)
    theta = number(config.rope, "rope_theta", "config.json's rope parameters")
    thetas = config.get("layer_rope_theta")
    if thetas not in (None, [theta if w else 0 for w in windowed]):
        raise ConvertError(
            f"config.json: layer_rope_theta is {brief(thetas)}: in a muse-glimmer file the layers "
            f"with a window rotate by {theta:g}, and no others"
        )
    writer.add_final_logit_softcapping(config.number("final_logit_softcapping"))
    writer.add_logit_scale(config.number("output_multiplier"))
    add_windows(writer, config, windowed)


def norms(config: Config) -> dict[str, F32]:
    """Weights of the norms of queries, by which transformers multiplies, and of keys: ones."""
    scales = {"attn_q_norm": config.number("qk_scale_factor"), "attn_k_norm": 1.0}
    return {
        f"blk.{index}.{name}.weight": np.full(config.head_dim, scale, np.float32)
        for index in range(config.n_layers)
        for name, scale in scales.items()
    }
