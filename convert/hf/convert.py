"""A Hugging Face model's folder to one GGUF file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import gguf
import numpy as np

from ...ops.arrays import U8
from ...ops.types import QUANT_TYPES, row_bytes
from ...system.files import check_target, new_file
from ..errors import ConvertError
from ..quantize import EncodeError, encode
from ..quantize.mixes import Mix, ModelFacts, tensor_types
from ..writing import check_room, pad
from . import reranker
from .architecture import HFArchitecture
from .architectures import architecture_of, check
from .config import Config
from .families.experts import count
from .files.folder import read_config, read_tensors
from .metadata.description import add_description
from .metadata.values import check_values
from .modules import read_modules
from .tensors import PlannedTensor, check_embedding, is_drafting, plan
from .vocabulary import read_vocabulary

CHUNK_BYTES = 32 << 20
"""float32 values that are in memory at a time."""


def convert(
    source: Path,
    out: Path,
    mix: Mix,
    *,
    pre: str | None = None,
    name: str | None = None,
    notice: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Convert the model in folder `source` to the file `out`, which appears when it is whole.

    mix: see `mix_of`; tensors for which it chooses no type are F32. pre: see `read_vocabulary`.
    name: the model's, as in a hub's "organisation/model" (default: the folder's). notice: called
    with one line for each thing worth telling. progress: called with the bytes written and those to
    write.

    Memory: a few times `CHUNK_BYTES`, beside the vocabulary. Raises `ConvertError` for a model that
    cannot be converted, naming the obstacle; `FileRefused` where `out` is no name of a file to
    write, before anything is read.
    """
    check_target(out)
    logging.getLogger("gguf").addHandler(logging.NullHandler())  # its warnings are told in words
    values = read_config(source)
    architecture = architecture_of(values)
    config = Config(values, architecture.defaults)
    check(architecture, config)
    modules = read_modules(source, architecture.name)
    stored = read_tensors(source) | modules.tensors
    n_vocab = None if config.get("vocab_size") is None else config.integer("vocab_size")
    check_embedding(stored, n_vocab)
    vocabulary = read_vocabulary(source, architecture, n_vocab, pre)
    planned = plan(architecture, config, stored, len(vocabulary.tokens.texts))
    if reranker.is_reranker(source, values, architecture.name):
        planned.append(reranker.classifier(planned, vocabulary.tokens.texts))
    if vocabulary.by_rules:
        notice(
            f"the pre-tokenizer is {vocabulary.pre} by its rules: llama.cpp's table of hashes does "
            "not know the vocabulary"
        )
    for line in unread_features(config, stored):
        notice(line)
    if any(tensor.name.endswith(".ffn_exps.bias") for tensor in planned):
        notice("what is added to the sum of experts is kept: llama.cpp refuses a file that has it")

    writer = gguf.GGUFWriter(None, architecture.name)
    types = _types(architecture, config, mix, planned)
    for tensor in planned:
        declare(writer, tensor, types[tensor.name])
    add_description(writer, source, name)
    architecture.add_keys(writer, config)
    modules.add(writer)
    reranker.add_keys(writer)
    writer.add_file_type(mix.file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    vocabulary.add(writer)
    check_values(writer)
    with new_file(out) as part:
        n_bytes = sum(tensor.nbytes for tensor in writer.tensors[0].values())
        check_room(out.absolute().parent, n_bytes, out.name)
        write_file(part, writer, planned, progress)


def unread_features(config: Config, stored: Iterable[str]) -> list[str]:
    """What the model's configuration asks for and no reader of GGUF files does."""
    lines = []
    windowed = config.get("sliding_window") and config.flag("use_sliding_window")
    if windowed or (config.get("model_type") == "mistral" and config.get("sliding_window")):
        lines.append(
            f"the sliding window of {config.get('sliding_window')} tokens is left out, as "
            "llama.cpp does: all layers see the whole context"
        )
    if config.rope.get("rope_type") == "yarn" and not config.rope.get("truncate", True):
        lines.append(
            "the range of frequencies that YaRN blends is rounded, as in llama.cpp, though "
            "config.json says truncate false"
        )
    if n := sum(is_drafting(name, config) for name in stored):
        lines.append(f"{n} tensors are left out: they draft tokens, which kvarn does without them")
    return lines


def _types(
    architecture: HFArchitecture, config: Config, mix: Mix, planned: list[PlannedTensor]
) -> dict[str, str]:
    facts = ModelFacts(
        architecture.name, config.n_layers, config.n_heads, config.n_kv_heads, count(config)
    )
    shapes = {tensor.name: tensor.view.shape for tensor in planned}
    chosen = tensor_types(mix, shapes, facts)
    return {t.name: t.view.type_name or chosen.get(t.name, "F32") for t in planned}


def declare(writer: gguf.GGUFWriter, tensor: PlannedTensor, type_name: str) -> None:
    """Add a tensor of this type to the header to be."""
    kind = QUANT_TYPES[type_name]
    shape = tensor.view.shape
    n_bytes = tensor.view.n_rows * row_bytes(kind, shape[-1])
    raw = gguf.GGMLQuantizationType(kind.ggml_id)
    writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), n_bytes, raw)


def write_file(
    path: Path,
    writer: gguf.GGUFWriter,
    planned: list[PlannedTensor],
    progress: Callable[[int, int], None],
) -> None:
    """The header by gguf-py, then every tensor a chunk of rows at a time."""
    types = {name: info.dtype.name for name, info in writer.tensors[0].items()}
    total = sum(info.nbytes for info in writer.tensors[0].values())
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    done = 0
    with path.open("ab") as file:
        for tensor in planned:
            pad(file)
            view = tensor.view
            step = max(1, CHUNK_BYTES // (4 * view.shape[-1]))
            for first in range(0, view.n_rows, step):
                stop = min(first + step, view.n_rows)
                data = _encoded(tensor, first, stop, types[tensor.name])
                file.write(data.data)
                done += data.nbytes
                progress(done, total)
        pad(file)


def _encoded(tensor: PlannedTensor, first: int, stop: int, type_name: str) -> U8:
    """Rows first .. stop - 1 in a type; `ConvertError` naming the tensor where that fails."""
    rows = tensor.view.rows(first, stop)
    if tensor.view.type_name is not None:
        return rows
    try:
        return encode(rows, type_name)
    except EncodeError as error:
        raise ConvertError(f"tensor {tensor.name}, rows from {first}: {error}") from error
