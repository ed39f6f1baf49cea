"""Tiny models of the newer architectures in types of few bits: what kernels and llama.cpp round.

Matrices of the type's blocks, or of Q8_0 where a row is no whole number of blocks; routers, small
convolutions and rows that no block divides stay float32. Of "MXFP4" the experts alone have it, as
in files of gpt-oss.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from . import tiny_models, tiny_quants
from .exact import exact_logits
from .tiny.case import Tiny
from .tiny_cases import CASES

DENSE = (
    "qwen3vl granite olmo2 glm4 exaone4 gemma command-r seed_oss ernie4_5 hunyuan-dense starcoder2 "
    "stablelm nemotron phi2 muse-glimmer qwen35 qwen3next lfm2 gemma4 gemma4-shared "
    "granitehybrid nemotron_h falcon-h1"
).split()
WITH_EXPERTS = (
    "llama-experts qwen2moe qwen3moe olmoe granitemoe glm4moe ernie4_5-moe laguna qwen35moe "
    "lfm2moe gpt-oss gemma4-experts nemotron_h_moe"
).split()
KINDS = [
    (name, kind)
    for names, kinds in ((DENSE, ("Q8_0", "Q4_K")), (WITH_EXPERTS, ("Q8_0", "Q4_K", "MXFP4")))
    for name in names
    for kind in kinds
]
"""Models, and the type of their matrices."""
SEED, N_TOKENS, N = 11, 33, 256
_BLOCKS = {"Q8_0": 32, "MXFP4": 32, "Q4_K": 256}
_FLOATS = "conv1d", "shortconv.conv", "gate_inp"


def case_of(name: str) -> Tiny:
    """The tiny model with rows of 256 weights."""
    case = next(case for case in CASES if case.name == name)
    lengths = {key: N for key in case.keys if key.endswith("expert_feed_forward_length")}
    if "feed_forward_length" in case.keys:
        lengths["feed_forward_length"] = [N * (n > 0) for n in case.keys["feed_forward_length"]]
    if case.architecture == "granitehybrid":  # llama.cpp has no other size
        lengths["ssm.inner_size"] = 2 * N
    if case.n_heads * case.head_dim == case.n_embd:  # some architectures have no other sizes
        n_heads, n_kv_heads = (min(n, 4) for n in (case.n_heads, case.n_kv_heads))
        case = replace(case, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=N // n_heads)
    return replace(case, n_embd=N, n_ff=N, keys=case.keys | lengths)


@lru_cache(1)
def _arrays(name: str) -> dict[str, np.ndarray]:
    return tiny_models.tensors(case_of(name), SEED)


def _type(name: str, shape: tuple[int, ...], kind: str) -> str:
    if (
        len(shape) == 1
        or name.endswith((".bias", "norm.weight"))
        or any(x in name for x in _FLOATS)
    ):
        return "F32"
    if kind == "MXFP4" and "_exps" not in name:
        kind = "Q8_0"
    fitting = (x for x in (kind, "Q8_0") if shape[-1] % _BLOCKS[x] == 0)
    return next(fitting, "F32")


@lru_cache(1)
def tensors(name: str, kind: str) -> dict[str, tuple[np.ndarray, str]]:
    """Every tensor's stored form and type."""
    result = {}
    for tensor, values in _arrays(name).items():
        stored = _type(tensor, values.shape, kind)
        data = values
        if stored != "F32":
            data = tiny_quants.blocks(tensor, stored, values.shape, float(values.std()))
        result[tensor] = data, stored
    return result


def write(path: Path, name: str, kind: str) -> None:
    """Write the model."""
    case = case_of(name)
    writer = gguf.GGUFWriter(path, case.architecture)
    tiny_models.add_metadata(writer, tiny_models.metadata(case))
    for tensor, (data, stored) in tensors(name, kind).items():
        if stored == "F32":
            writer.add_tensor(tensor, data)
        else:
            writer.add_tensor(tensor, data, raw_dtype=gguf.GGMLQuantizationType[stored])
    tiny_models.finish(writer)


def ids(name: str) -> list[int]:
    """The tokens that are fed, whatever the model would have said."""
    return tiny_models.prompt(replace(case_of(name), n_prompt=N_TOKENS), SEED)


def exact(name: str, kind: str) -> np.ndarray:
    """Logits of the decoded weights, in float64."""
    decoded: dict[str, Any] = {
        tensor: data
        if stored == "F32"
        else gguf.quants.dequantize(data, gguf.GGMLQuantizationType[stored])
        for tensor, (data, stored) in tensors(name, kind).items()
    }
    case = case_of(name)
    return exact_logits(tiny_models.metadata(case), decoded, ids(name), case.n_ctx)


def error(logits: np.ndarray, expected: np.ndarray) -> float:
    """Root mean square of a token's differences, of the median token, in units of the logits'
    spread.

    Where a router is near a tie, either run may take another expert than exact numbers do: that
    token's error is that of a choice, ten times those of rounding.
    """
    errors = np.sqrt(np.square(logits - expected).mean(axis=1))
    return float(np.median(errors) / expected.std())
