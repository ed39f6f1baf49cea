"""The tensors of the file to be: their names, and their rows, read on demand."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import gguf
import numpy as np
from numpy.typing import NDArray

from ..errors import ConvertError
from .config import Config
from .rope import factor_tensors
from .safetensors import StoredTensor
from .table import HFArchitecture

F32 = NDArray[np.float32]

# Buffers that old files keep, and the parts of models that see or hear.
_IGNORED_ENDINGS = (".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq")
_IGNORED_PARTS = (
    "vision_tower.",
    "vision_model.",
    "visual.",
    "multi_modal_projector.",
    "vision_adapter.",
    "vision_projection.",
    "vision_projector.",
)
# stablelm's norms of single heads.
_HEAD_NORM = re.compile(
    r"(model\.layers\.\d{1,3}\.self_attn\.[qk]_layernorm)\.norms\.(\d{1,4})\.weight"
)
# What the runtime loads; gguf-py's table has more, mixtures of experts for instance.
_LOADED = re.compile(
    r"(token_embd|output|output_norm|blk\.\d+\.(attn_(norm|gate|q|k|v|qkv|output|q_norm|k_norm)"
    r"|post_attention_norm|post_ffw_norm|ffn_(norm|gate|up|down)))\.(weight|bias)"
)


Rows = Callable[[int, int], F32]
"""(first, stop) → rows first .. stop - 1, float32 (stop - first, n_columns)."""


@dataclass(frozen=True)
class Planned:
    """One tensor of the file to be."""

    name: str
    shape: tuple[int, ...]
    """(rows, columns), or (length,), which is one row."""
    rows: Rows
    granule: int = 1
    """Rows are asked for in whole multiples of this many."""

    @property
    def n_rows(self) -> int:
        return self.shape[0] if len(self.shape) == 2 else 1


def _given(name: str, values: F32) -> Planned:
    """A vector of values that were computed."""
    return Planned(name, values.shape, lambda first, stop: values.reshape(1, -1)[first:stop])


def _shifted(rows: Rows, shift: float) -> Rows:
    return lambda first, stop: rows(first, stop) + np.float32(shift)


def _interleaved(rows: Rows, head_dim: int, is_bias: bool) -> Rows:
    """Each head's rows 0 1 2 … E-1 in the order 0 E/2 1 E/2+1 …; for a bias, its values.

    transformers rotates the pairs (i, i + E/2), llama.cpp (2i, 2i + 1).
    """

    def read(first: int, stop: int) -> F32:
        halves = rows(first, stop)
        width = 1 if is_bias else halves.shape[1]  # a bias is one row of all heads
        pairs = halves.reshape(-1, 2, head_dim // 2, width).swapaxes(1, 2)
        return np.ascontiguousarray(pairs).reshape(halves.shape)

    return read


def plan(
    architecture: HFArchitecture,
    config: Config,
    stored: Mapping[str, StoredTensor],
    n_vocab: int,
) -> list[Planned]:
    """The tensors of the file, in the order of llama.cpp's converter: factors, then as stored.

    Raises `ConvertError` for a tensor that the architecture does not know, a bias that it cannot
    keep, and an output matrix that is missing where the model does not share the embedding's.
    """
    names = gguf.get_tensor_name_map(
        _arch(architecture.names or architecture.name), config.n_layers
    )
    factors = factor_tensors(architecture.name, config)
    if architecture.given is not None:
        factors |= architecture.given(config)
    planned = [_given(name, values) for name, values in factors.items()]
    norms: dict[str, dict[int, StoredTensor]] = {}
    for name, tensor in stored.items():
        plain = name.replace("language_model.", "").replace("model.model.", "model.")
        if _is_left_out(architecture, config, plain, tensor):
            continue
        if (of_head := _HEAD_NORM.fullmatch(plain)) is not None:
            plain = f"{of_head[1]}.weight"
        new_name = names.get_name(plain, try_suffixes=(".weight", ".bias"))
        if new_name is None or _LOADED.fullmatch(new_name) is None:
            raise ConvertError(f"tensor {name:.80} is unknown to architecture {architecture.name}")
        if of_head is not None:
            norms.setdefault(new_name, {})[int(of_head[2])] = tensor
            continue
        target = _planned(architecture, config, plain, new_name, tensor)
        if new_name in ("token_embd.weight", "output.weight"):
            if target.n_rows < n_vocab:
                raise ConvertError(f"tensor {plain} has {target.n_rows} rows for {n_vocab} tokens")
            if target.n_rows > n_vocab:
                target = replace(target, shape=(n_vocab, target.shape[1]))
        planned.append(target)
    _check_output(architecture, config, {tensor.name for tensor in planned})
    return planned + [_stacked(name, heads) for name, heads in norms.items()]


def _stacked(name: str, heads: Mapping[int, StoredTensor]) -> Planned:
    """Norms that are stored head by head, as one tensor of a row for each head."""
    whole, shapes = sorted(heads) == list(range(len(heads))), {t.shape for t in heads.values()}
    if not whole or len(shapes) > 1 or len(min(shapes)) != 1 or 0 in min(shapes):
        raise ConvertError(f"the norms of single heads for {name} are not of heads 0, 1, 2, …")
    values = np.concatenate([heads[i].rows(0, 1) for i in range(len(heads))])
    return Planned(name, values.shape, lambda first, stop: values[first:stop])


def check_embedding(stored: Mapping[str, StoredTensor], n_vocab: int | None) -> None:
    """`ConvertError` where no tensor has a row for each of `n_vocab` tokens.

    Asked before the vocabulary is read, which makes a token for each.
    """
    if n_vocab is not None and all(tensor.n_rows < n_vocab for tensor in stored.values()):
        most = max((tensor.n_rows for tensor in stored.values()), default=0)
        raise ConvertError(f"the shards hold no embedding: {most} rows for {n_vocab} tokens")


def _arch(name: str) -> gguf.MODEL_ARCH:
    return next(arch for arch, known in gguf.MODEL_ARCH_NAMES.items() if known == name)


def _is_left_out(
    architecture: HFArchitecture, config: Config, name: str, tensor: StoredTensor
) -> bool:
    if name.endswith(_IGNORED_ENDINGS) or any(part in name for part in _IGNORED_PARTS):
        return True
    if name == "lm_head.weight":
        # transformers would overwrite a shared output matrix with the embedding.
        return architecture.drops_output or config.flag("tie_word_embeddings")
    if architecture.drops_zero_bias and name.endswith(".bias"):
        if tensor.rows(0, tensor.n_rows).any():
            raise ConvertError(f"{name} is not zero: a {architecture.name} file has no biases")
        return True
    return False


def _planned(
    architecture: HFArchitecture, config: Config, name: str, new_name: str, tensor: StoredTensor
) -> Planned:
    if not tensor.shape or len(tensor.shape) > 2 or 0 in tensor.shape:
        raise ConvertError(f"tensor {name:.80} has shape {tensor.shape}, expected one or two sizes")
    rows: Rows = tensor.rows
    if architecture.norm_shift and name.endswith(architecture.shifted):
        rows = _shifted(rows, architecture.norm_shift)
    stem = name.removesuffix(".bias").removesuffix(".weight")
    if not architecture.permuted or not stem.endswith((".q_proj", ".k_proj")):
        return Planned(new_name, tensor.shape, rows)
    head_dim, is_bias = config.head_dim, tensor.n_rows == 1
    if tensor.shape[0] % head_dim:
        raise ConvertError(
            f"tensor {name} has {tensor.shape[0]} rows, which heads of {head_dim} do not divide"
        )
    granule = head_dim if len(tensor.shape) == 2 else 1
    return Planned(new_name, tensor.shape, _interleaved(rows, head_dim, is_bias), granule)


def _check_output(architecture: HFArchitecture, config: Config, names: set[str]) -> None:
    if "token_embd.weight" not in names:
        raise ConvertError("the shards hold no embedding (model.embed_tokens.weight)")
    shared = architecture.drops_output or config.flag("tie_word_embeddings")
    if not shared and "output.weight" not in names:
        raise ConvertError(
            "the shards hold no lm_head.weight, and config.json does not say tie_word_embeddings"
        )
