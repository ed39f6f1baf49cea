"""An embedder of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...jit.arena import Arena
from ...models.config.architectures import TEXT_ENCODERS
from ...models.config.text_encoders import TextEncoderConfig
from ...models.tensors import repacked_bytes
from ...models.text_encoders import TextEncoderWeights
from ...ops.cpu import CPU
from ...ops.reference.quants import dequantise
from ...system.spelling import spelt
from ...system.text import brief
from ..engine import on_engine
from ..gguf import open_gguf
from ..loading.load import load
from ..loading.model_info import name_of
from ..tokenizer import Tokenizer
from .embedder import Embedder
from .pooling import EmbeddingError, checked_pooling, pooling_of_file
from .readers import DecoderReader, EncoderReader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..gguf import GGUFFile
    from .readers import Reader


_OUTPUT = "cls.output.weight"
_RANKING = ("qwen3", "qwen3vl")
"""Architectures that generate and can have a classifier, by which they are asked yes or no."""
_MAX_LABELS = 1024


def load_embedder(
    path: str | Path,
    *,
    pooling: str | None = None,
    threads: int | None = None,
    notice: Callable[[str], None] | None = None,
) -> Embedder:
    """A model that turns texts into vectors, or scores them: a text encoder (bert, nomic-bert,
    modern-bert, gemma-embedding), or, if the pooling is said, a model that generates.

    pooling: "mean", "cls", "last" or "rank" (default: as the file says). threads: kernel threads of
    the whole process (default: one per physical core). notice: as for `load`.

    Raises `EmbeddingError` where neither the file nor `pooling` says how to pool, before weights
    are loaded; else what `load` raises.
    """
    file = open_gguf(Path(path))
    name = name_of(file)
    chosen = _pooling(file, name, pooling)
    reader: Reader
    if file.architecture not in TEXT_ENCODERS:
        model = load(path, threads=threads, notice=notice)
        ranks = chosen == "rank"
        reader = DecoderReader(
            model, *((_classifier(file, model.config.n_embd), _template(file)) if ranks else ())
        )
        return Embedder(reader, chosen, model.name)
    config = TextEncoderConfig.from_metadata(file.metadata)
    tokenizer = Tokenizer.from_metadata(file.metadata)
    if threads is not None:
        from ...jit import threads as kernel_threads

        on_engine(kernel_threads.set_threads, threads)
    multiplied = {key: x for key, x in file.tensors.items() if key != "token_embd.weight"}
    arena = Arena(repacked_bytes(multiplied))
    weights = on_engine(TextEncoderWeights.load, file.tensors, config, arena, CPU)
    reader = EncoderReader(config, weights, tokenizer)
    return Embedder(reader, chosen, name)


def _classifier(file: GGUFFile, n_embd: int) -> NDArray[np.float32]:
    """The output's rows of a reranker that generates; `EmbeddingError` for another shape."""
    tensor = file.tensors[_OUTPUT]
    if len(tensor.shape) != 2 or tensor.shape[1] != n_embd or tensor.shape[0] > _MAX_LABELS:
        raise EmbeddingError(
            f"{_OUTPUT} has shape {tuple(tensor.shape)}, expected (2, {n_embd}): the rows of "
            '"yes" and "no"'
        )
    return dequantise(tensor.type, tensor.data)


def _template(file: GGUFFile) -> str | None:
    key = "tokenizer.chat_template.rerank"
    value = file.metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or "{query}" not in value or "{document}" not in value:
        raise EmbeddingError(
            f"{key} is {brief(value)}, expected one with {{query}} and {{document}}"
        )
    return value


def _pooling(file: GGUFFile, name: str, asked: str | None) -> str:
    """What is asked for, or what the file says."""
    encodes = file.architecture in TEXT_ENCODERS
    scores = _OUTPUT in file.tensors and (encodes or file.architecture in _RANKING)
    scores = scores or (encodes and "cls.weight" in file.tensors)
    chosen = checked_pooling(asked) if asked else pooling_of_file(file.architecture, file.metadata)
    if chosen is None and scores:
        chosen = "rank"
    if chosen is None:
        kind = "does not say how its tokens make one vector" if encodes else "generates text"
        ways = "mean or cls" if encodes else "mean or last, to make vectors of its hidden states"
        raise EmbeddingError(f"{name} {kind} ({file.architecture}): give {spelt('pooling')} {ways}")
    if chosen == "rank" and not scores:
        raise EmbeddingError(
            f"{name} ({file.architecture}) has no classifier that scores texts (tensors cls): "
            "expected a reranker, as bge-reranker or Qwen3-Reranker"
        )
    if chosen == "cls" and not encodes:
        raise EmbeddingError(
            f"{name} ({file.architecture}) reads forwards, and its first token knows nothing of "
            f"the text: give {spelt('pooling')} mean or last"
        )
    return chosen
