"""An adapter's folder to one GGUF file.

general.type = "adapter", adapter.type = "lora", general.architecture: that of the model
adapter.lora.alpha     readers scale B A by alpha / R
NAME.lora_a            (R, K), for the tensor NAME (N, K) of the model
NAME.lora_b            (N, R)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import gguf

from ....system.files import check_target, new_file
from ...errors import ConvertError
from ...quantize.mixes import Mix
from ...writing import check_room
from ..convert import declare, write_file
from ..files.folder import PICKLES
from ..files.safetensors import StoredTensor, read_header
from ..metadata.description import add_description
from ..metadata.values import check_values
from ..tensors import PlannedTensor
from .base import base_path, read_base
from .pairs import file_pairs, stored_pairs
from .settings import AdapterSettings

WEIGHTS = "adapter_model.safetensors"


def convert_adapter(
    source: Path,
    out: Path,
    mix: Mix,
    base: Path | None = None,
    *,
    name: str | None = None,
    notice: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Convert the adapter in folder `source` to the file `out`, which appears when it is whole.

    mix: F32, F16 or BF16. base: the adapter's model, a folder of which config.json is read, or a
    GGUF file (default: the folder that adapter_config.json names, if it is here; never fetched).
    name, notice, progress: as in `hf.convert`.

    Memory: a few times `CHUNK_BYTES`. Raises `ConvertError` for an adapter that a GGUF file cannot
    have or that does not fit its model; `FileRefused` where `out` is no name of a file to write.
    """
    check_target(out)
    if mix.quantised:
        raise ConvertError(
            f"type {mix.name}: an adapter is too small to quantise, expected f32, f16 or bf16"
        )
    logging.getLogger("gguf").addHandler(logging.NullHandler())
    settings = AdapterSettings.read(source)
    if base is None:
        base = base_path(settings, source)
        notice(f"the adapter's model is {base}")
    model = read_base(base)
    pairs, n_left_out = stored_pairs(_tensors(source), model)
    made = file_pairs(pairs, model, settings)
    if n_left_out:
        notice(
            f"{n_left_out} tensors are left out: they see, hear, draft tokens, or are the model's "
            "own"
        )
    planned = [
        PlannedTensor(f"{pair.name}.{end}", view)
        for pair in made
        for end, view in (("lora_a", pair.a), ("lora_b", pair.b))
    ]
    writer = gguf.GGUFWriter(None, model.architecture.name)
    for tensor in planned:
        declare(writer, tensor, mix.type_name)
    add_description(writer, source, name, gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, settings.file_alpha)
    writer.add_file_type(mix.file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    check_values(writer)
    with new_file(out) as part:
        n_bytes = sum(tensor.nbytes for tensor in writer.tensors[0].values())
        check_room(out.absolute().parent, n_bytes, out.name)
        write_file(part, writer, planned, progress)


def _tensors(source: Path) -> dict[str, StoredTensor]:
    if (source / WEIGHTS).is_file():
        return read_header(source / WEIGHTS)
    pickle = next((p.name for p in sorted(source.iterdir()) if p.suffix in PICKLES), None)
    if pickle is not None:
        raise ConvertError(
            f"{source} has its weights as a pickle ({pickle}), which can run any code when read, "
            f"expected {WEIGHTS}: load and save it with PEFT"
        )
    raise ConvertError(f"{source} has no {WEIGHTS}, expected an adapter that PEFT saved")
