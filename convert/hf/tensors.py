"""Which tensors a file gets, their names, and their rows, read on demand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import gguf
import numpy as np
from numpy.typing import NDArray

from ..errors import ConvertError
from .architectures import HFArchitecture
from .config import Config
from .rope import factor_tensors
from .safetensors import StoredTensor

F32 = NDArray[np.float32]

# Buffers that old files keep, and the parts of models that see or hear.
_IGNORED_ENDINGS = (".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq")
_IGNORED_PARTS = ("vision_tower.", "vision_model.", "multi_modal_projector.", "vision_projector.")
# What the runtime loads; gguf-py's table has more, mixtures of experts for instance.
_LOADED = re.compile(
    r"(token_embd|output|output_norm|blk\.\d+\.(attn_(norm|q|k|v|qkv|output|q_norm|k_norm)"
    r"|post_attention_norm|post_ffw_norm|ffn_(norm|gate|up|down)))\.(weight|bias)"
)


class Rows(Protocol):
    """Where a tensor's values come from."""

    @property
    def n_rows(self) -> int:
        """How many there are."""
        ...

    @property
    def n_columns(self) -> int:
        """Length of one."""
        ...

    def rows(self, first: int, last: int) -> F32:
        """Rows first .. last - 1, float32 (last - first, n_columns)."""


@dataclass(frozen=True)
class Planned:
    """One tensor of the file to be."""

    name: str
    shape: tuple[int, ...]
    """(rows, columns), or (length,)."""
    source: Rows
    granule: int = 1
    """Rows are asked for in whole multiples of this many."""


@dataclass(frozen=True)
class _Given:
    """Values that were computed: one row."""

    values: F32

    @property
    def n_rows(self) -> int:
        return 1

    @property
    def n_columns(self) -> int:
        return self.values.size

    def rows(self, first: int, last: int) -> F32:
        return self.values.reshape(1, -1)[first:last]


@dataclass(frozen=True)
class _Derived:
    """Rows that are made of those of a source."""

    source: Rows

    @property
    def n_rows(self) -> int:
        return self.source.n_rows

    @property
    def n_columns(self) -> int:
        return self.source.n_columns

    def rows(self, first: int, last: int) -> F32:
        return self.source.rows(first, last)


@dataclass(frozen=True)
class _Cut(_Derived):
    """The first rows of a source."""

    n_first: int

    @property
    def n_rows(self) -> int:
        return self.n_first


@dataclass(frozen=True)
class _Shifted(_Derived):
    """A source plus a number."""

    by: float

    def rows(self, first: int, last: int) -> F32:
        return self.source.rows(first, last) + np.float32(self.by)


@dataclass(frozen=True)
class _Interleaved(_Derived):
    """Each head's rows 0 1 2 … E-1 in the order 0 E/2 1 E/2+1 …; for a bias, its values.

    transformers rotates the pairs (i, i + E/2), llama.cpp (2i, 2i + 1).
    """

    head_dim: int

    def rows(self, first: int, last: int) -> F32:
        rows = self.source.rows(first, last)
        width = 1 if self.n_rows == 1 else self.n_columns  # a bias is one row of all heads
        halves = rows.reshape(-1, 2, self.head_dim // 2, width)
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def plan(
    architecture: HFArchitecture,
    config: Config,
    stored: Mapping[str, StoredTensor],
    n_vocab: int,
) -> list[Planned]:
    """The tensors of the file, in llama.cpp's order of the converter: factors, then as stored.

    Raises `ConvertError` for a tensor that the architecture does not know, a bias that it cannot
    keep, and an output matrix that is missing where the model does not share the embedding's.
    """
    names = gguf.get_tensor_name_map(_arch(architecture.name), config.n_layers)
    factors = factor_tensors(architecture.name, config)
    planned = [Planned(name, values.shape, _Given(values)) for name, values in factors.items()]
    for name, tensor in stored.items():
        plain = name.replace("language_model.", "").replace("model.model.", "model.")
        if _is_left_out(architecture, config, plain, tensor):
            continue
        new_name = names.get_name(plain, try_suffixes=(".weight", ".bias"))
        if new_name is None or _LOADED.fullmatch(new_name) is None:
            raise ConvertError(f"tensor {name:.80} is unknown to architecture {architecture.name}")
        planned.append(_planned(architecture, config, plain, new_name, tensor, n_vocab))
    _check_output(architecture, config, {tensor.name for tensor in planned})
    return planned


def check_embedding(stored: Mapping[str, StoredTensor], n_vocab: int | None) -> None:
    """`ConvertError` where no tensor has a row for each of `n_vocab` tokens.

    Asked before the vocabulary is read, which makes a token for each.
    """
    if n_vocab is not None and all(tensor.n_rows < n_vocab for tensor in stored.values()):
        most = max((tensor.n_rows for tensor in stored.values()), default=0)
        raise ConvertError(f"the shards hold no embedding: {most} rows for {n_vocab} tokens")


def _arch(name: str) -> gguf.MODEL_ARCH:
    return next(arch for arch, found in gguf.MODEL_ARCH_NAMES.items() if found == name)


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
    architecture: HFArchitecture,
    config: Config,
    name: str,
    new_name: str,
    tensor: StoredTensor,
    n_vocab: int,
) -> Planned:
    if not tensor.shape or len(tensor.shape) > 2 or 0 in tensor.shape:
        raise ConvertError(f"tensor {name:.80} has shape {tensor.shape}, expected one or two sizes")
    source: Rows = tensor
    if architecture.norm_shift and name.endswith("norm.weight"):
        source = _Shifted(source, architecture.norm_shift)
    if new_name in ("token_embd.weight", "output.weight"):
        if tensor.n_rows < n_vocab:
            raise ConvertError(f"tensor {name} has {tensor.n_rows} rows for {n_vocab} tokens")
        source = _Cut(source, n_vocab)
    granule = 1
    if architecture.permuted and name.removesuffix(".bias").removesuffix(".weight").endswith(
        (".q_proj", ".k_proj")
    ):
        granule = config.head_dim
        if tensor.shape[0] % granule:
            raise ConvertError(
                f"tensor {name} has {tensor.shape[0]} rows, which heads of {granule} do not divide"
            )
        source = _Interleaved(source, granule)
        granule = granule if len(tensor.shape) == 2 else 1
    shape = tensor.shape if len(tensor.shape) == 1 else (source.n_rows, source.n_columns)
    return Planned(new_name, shape, source, granule)


def _check_output(architecture: HFArchitecture, config: Config, names: set[str]) -> None:
    if "token_embd.weight" not in names:
        raise ConvertError("the shards hold no embedding (model.embed_tokens.weight)")
    shared = architecture.drops_output or config.flag("tie_word_embeddings")
    if not shared and "output.weight" not in names:
        raise ConvertError(
            "the shards hold no lm_head.weight, and config.json does not say tie_word_embeddings"
        )
