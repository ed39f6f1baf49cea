"""The model that an adapter is for: its architecture, its sizes and the tensors of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....models.config import ModelConfig
from ....models.errors import ModelError
from ....runtime.gguf import GGUFFile, open_gguf
from ....system.text import one_line
from ...errors import ConvertError
from ..architecture import HFArchitecture
from ..architectures import architecture_of, check
from ..config import Config
from ..files.folder import read_config
from ..table import HF_ARCHITECTURES
from .settings import FILE, AdapterSettings

_DELTA_NET = {
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_key_head_dim": "ssm.state_size",
    "linear_value_head_dim": "ssm.state_size",
}
"""Keys of config.json that decide the order of rows, by those of GGUF files."""


@dataclass(frozen=True)
class Base:
    """What is known of the model."""

    architecture: HFArchitecture
    config: Config
    name: str
    shapes: Mapping[str, tuple[int, ...]] | None = field(default=None, repr=False)
    """Of its tensors by the file's names; None where only config.json was read."""


def base_path(settings: AdapterSettings, source: Path) -> Path:
    """The folder that the adapter names as its model; `ConvertError` where there is none here."""
    if settings.base and (Path(settings.base) / "config.json").is_file():
        return Path(settings.base)
    told = f"names {one_line(settings.base, 300)}" if settings.base else "names no model"
    raise ConvertError(
        f"{source}: {FILE} {told}, expected a folder with config.json: give the adapter's model "
        "with --base FOLDER or --base MODEL.gguf"
    )


def read_base(path: Path) -> Base:
    """The model in a folder (config.json alone is read) or a GGUF file.

    Raises `ConvertError` for an architecture that kvarn does not convert, or one that reads no
    adapters; `GGUFError` for a damaged file.
    """
    if path.is_dir():
        # Of a model that was trained quantised, the names are those of the unquantised one.
        values = {k: v for k, v in read_config(path).items() if k != "quantization_config"}
        architecture = architecture_of(values)
        config = Config(values, architecture.defaults)
        check(architecture, config)
        base = Base(architecture, config, path.absolute().name)
    else:
        with open_gguf(path) as file:
            base = _of_file(file)
    if base.architecture.encodes:
        raise ConvertError(
            f"{one_line(base.name)} is a text encoder ({base.architecture.name}), expected a model "
            "that generates text: kvarn adds no adapters to others"
        )
    return base


def _of_file(file: GGUFFile) -> Base:
    name = one_line(file.path.name, 300)
    kind = file.get("general.type", str, "model")
    if kind != "model":
        raise ConvertError(f"{name}: found general.type {one_line(kind)}, expected a model")
    entries = HF_ARCHITECTURES.values()
    known = (x for x in entries if file.architecture in (x.name, *x.also))
    architecture = next(known, None)
    if architecture is None:
        raise ConvertError(
            f"{name} has architecture {one_line(file.architecture)}, expected one that kvarn "
            f"converts: {', '.join(sorted({y for x in entries for y in (x.name, *x.also)}))}"
        )
    if architecture.factors is not None:
        raise ConvertError(
            f"{name} has architecture {architecture.name}, whose files do not tell what their "
            "weights were multiplied by: expected the folder with the model's config.json"
        )
    shapes = {tensor.name: tensor.shape for tensor in file.tensors.values()}
    config = Config(_values(file, architecture), architecture.defaults)
    return Base(architecture, config, file.path.name, shapes)


def _values(file: GGUFFile, architecture: HFArchitecture) -> dict[str, Any]:
    """What config.json would say of the sizes."""
    if architecture.encodes:
        return {}
    try:
        sizes = ModelConfig.from_metadata(file.metadata)
    except ModelError as error:
        raise ConvertError(f"{one_line(file.path.name, 300)}: {error}") from error
    values: dict[str, Any] = {
        "num_hidden_layers": sizes.n_layers,
        "num_attention_heads": sizes.n_heads,
        "num_key_value_heads": sizes.n_kv_heads,
        "head_dim": sizes.head_dim,
        "hidden_size": sizes.n_embd,
        "vocab_size": sizes.n_vocab,
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    # `Config.rotated_dims` rounds down: half a dimension more, as the quotient may be rounded, too.
    for rope in (layer.rope for layer in sizes.kv_layers if layer.rope is not None):
        if architecture.permuted and rope.n_rot < sizes.head_dim:
            values["partial_rotary_factor"] = (rope.n_rot + 0.5) / sizes.head_dim
    for key, in_file in _DELTA_NET.items():
        if n := file.get(f"{architecture.name}.{in_file}", int, 0):
            values[key] = n
    n_experts = file.get(f"{architecture.name}.expert_count", int, 0)
    # The defaults of an architecture may have other names for it.
    return values | {"num_local_experts": n_experts}
