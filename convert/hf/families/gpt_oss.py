"""gpt-oss: experts in MXFP4, which the file has as they are, and keys.

    stored      blocks u8 (n, rows, columns / 32, 16), scales u8 (n, rows, columns / 32)
                byte j of a block: weight 2j in the low four bits, 2j + 1 in the high ones
    in the file 17 bytes for 32 weights: the scale, then 16 bytes
                byte j: weight j in the low four bits, j + 16 in the high ones

Codes and scales mean the same in both. Sources: transformers' `mxfp4` integration, ggml's
`block_mxfp4`.
"""

from __future__ import annotations

import numpy as np
from gguf import GGUFWriter

from ....ops.arrays import U8
from ....ops.types import QUANT_TYPES, row_bytes
from ...errors import ConvertError
from ..architecture import HFArchitecture
from ..config import Config
from ..files.safetensors import BYTES
from ..metadata.keys import add_qwen
from ..metadata.layers import usual_windows, windowed_layers
from ..views import View, Views, columns, part, transposed
from .experts import add_experts

_GATES, _UPS = slice(0, None, 2), slice(1, None, 2)


def add_keys(writer: GGUFWriter, config: Config) -> None:
    """`gpt-oss.*`."""
    windowed = windowed_layers(config, 2)
    if windowed != usual_windows(config, 2):
        raise ConvertError(
            "config.json: layer_types: in a gpt-oss file every other layer has a window, the first "
            "among them"
        )
    add_qwen(writer, config)
    add_experts(writer, config)
    writer.add_sliding_window(config.integer("sliding_window"))
    writer.add_expert_feed_forward_length(config.integer("intermediate_size"))


def tensors(config: Config, views: Views) -> dict[str, View]:
    """Gates and ups, whose rows alternate, as separate tensors; matrices as (n, out, in)."""
    made: dict[str, View] = {}
    for name, view in views.items():
        stem, dot, end = name.rpartition(".experts.")
        projection, _, kind = end.partition("_proj")
        if not dot:
            made[f"{name}.weight" if name.endswith(".sinks") else name] = view
            continue
        if kind == "_scales":
            if f"{name.removesuffix('_scales')}_blocks" not in views:
                raise ConvertError(f"the shards hold {name} and no blocks of it")
            continue
        if kind == "_bias":
            ending, whole = "bias", view
        elif kind == "_blocks":
            ending, whole = "weight", _packed(name, views)
        else:
            ending, whole = "weight", _turned(name, view)
        if projection != "gate_up":
            made[f"{stem}.experts.{projection}_proj.{ending}"] = whole
            continue
        for half, rows in (("gate", _GATES), ("up", _UPS)):
            chosen = np.arange(whole.shape[-1])[rows]
            of_half = columns(whole, chosen) if ending == "bias" else part(whole, rows)
            made[f"{stem}.experts.{half}_proj.{ending}"] = of_half
    return made


def _turned(name: str, view: View) -> View:
    """Matrices that are stored as (n, in, out)."""
    if len(view.shape) != 3:
        raise ConvertError(f"tensor {name} has shape {view.shape}, expected three sizes")
    return transposed(view)


def _packed(name: str, views: Views) -> View:
    """Blocks and scales as rows of MXFP4."""
    blocks, scales_name = views[name], f"{name.removesuffix('_blocks')}_scales"
    if scales_name not in views:
        raise ConvertError(f"the shards hold {name} and no {scales_name}")
    scales = views[scales_name]
    sound = len(blocks.shape) == 4 and blocks.shape == (*scales.shape, 16)
    if not sound or {blocks.type_name, scales.type_name} != {BYTES}:
        raise ConvertError(
            f"tensors {name} {blocks.shape} and {scales_name} {scales.shape} are no blocks of 32 "
            "weights with a scale each"
        )
    n, n_rows, n_blocks = scales.shape
    n_bytes = row_bytes(QUANT_TYPES["MXFP4"], 32 * n_blocks)

    def read(first: int, stop: int) -> U8:
        codes = blocks.rows(first * n_blocks, stop * n_blocks)
        weights = np.stack([codes & 15, codes >> 4], axis=-1).reshape(-1, 32)
        out = np.empty((len(codes), 17), np.uint8)
        out[:, 0] = scales.rows(first, stop).ravel()
        out[:, 1:] = weights[:, :16] | weights[:, 16:] << 4
        return out.reshape(stop - first, n_bytes)

    return View((n, n_rows, 32 * n_blocks), read, "MXFP4")


ENTRY = HFArchitecture(
    "gpt-oss",
    add_keys,
    rewrite=tensors,
    packed="mxfp4",
    fixed={"swiglu_limit": 7.0, "swiglu_alpha": 1.702},  # of the activation, which readers know
)
