"""The `general.*` keys: what a model is called, who made it, how its makers sample from it."""

from __future__ import annotations

from pathlib import Path

import gguf
import yaml

from ..errors import ConvertError
from .folder import optional_json

# Keys of generation_config.json that go into the file as they are.
_SAMPLING = {
    "sequence": "sampling_sequence",
    "top_k": "sampling_top_k",
    "top_p": "sampling_top_p",
    "min_p": "sampling_min_p",
    "xtc_probability": "sampling_xtc_probability",
    "xtc_threshold": "sampling_xtc_threshold",
    "temperature": "sampling_temp",
    "penalty_last_n": "sampling_penalty_last_n",
    "penalty_repeat": "sampling_penalty_repeat",
    "mirostat": "sampling_mirostat",
    "mirostat_tau": "sampling_mirostat_tau",
    "mirostat_eta": "sampling_mirostat_eta",
}


def add_description(writer: gguf.GGUFWriter, folder: Path, name: str | None) -> None:
    """Write the keys, by gguf-py's rules, which are llama.cpp's.

    name: what the model is called where its card does not say, as "organisation/model"; without one
    the folder's name. `ConvertError` for a card (README.md) that cannot be read.
    """
    total, shared, experts, n_experts = writer.get_total_parameter_count()
    try:
        card = gguf.Metadata.load_model_card(folder)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConvertError(f"README.md: the model card cannot be read: {error}") from error
    parameters = gguf.Metadata.load_hf_parameters(folder)
    if name is not None:
        parameters.setdefault("_name_or_path", name)
    called = Path(name or folder.absolute().name)
    metadata = gguf.Metadata.apply_metadata_heuristic(
        gguf.Metadata(), card, parameters, called, total
    )
    for key, value in optional_json(folder / "generation_config.json").items():
        if key in _SAMPLING and value is not None:
            setattr(metadata, _SAMPLING[key], value)
    metadata.name = metadata.name or called.name
    metadata.size_label = metadata.size_label or gguf.size_label(total, shared, experts, n_experts)
    writer.add_type(gguf.GGUFType.MODEL)
    metadata.set_gguf_meta_model(writer)
