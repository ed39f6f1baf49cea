"""A model's folder: its JSON files and the tensors of all its shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....system.errors import no_such_file
from ....system.text import one_line
from ...errors import ConvertError
from .jsons import brief, optional_json, read_json
from .safetensors import StoredTensor, read_header

INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
SAFETENSORS_SPACE = "https://huggingface.co/spaces/safetensors/convert"


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model's folder; `ConvertError` where there is none."""
    if folder.is_file():
        raise ConvertError(
            f"{folder} is a file: expected the folder of a Hugging Face model, or a file whose "
            "name ends in .gguf"
        )
    if not folder.is_dir():
        raise ConvertError(no_such_file(folder, "expected the folder of a Hugging Face model"))
    if not (folder / "config.json").is_file():
        raise ConvertError(f"{folder} has no config.json: expected a Hugging Face model's folder")
    return read_json(folder / "config.json")


def read_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a model's shards by name, in the order of the files.

    Raises `ConvertError` for pickled weights, missing shards, and shards that are not those of
    their index.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in _shards(folder):
        for name, tensor in read_header(path).items():
            if name in tensors:
                raise ConvertError(f"{name} is both in {tensors[name].path.name} and {path.name}")
            tensors[name] = tensor
    listed = optional_json(folder / INDEX).get("weight_map", tensors)
    missing = next((name for name in listed if name not in tensors), None)
    if missing is not None:
        raise ConvertError(f"{INDEX} lists {one_line(missing)} and the shards do not have it")
    return tensors


def _shards(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        weight_map = read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, Mapping) or not weight_map:
            raise ConvertError(f"{INDEX} has no weight_map")
        names = sorted(set(map(_shard_name, weight_map.values())))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ConvertError(
                f"{folder} lacks {len(missing)} of {len(names)} shards, as {one_line(missing[0])}: "
                "pull again"
            )
        return [folder / name for name in names]
    shards = sorted(path for path in folder.glob("model*.safetensors") if path.is_file())
    if not shards:
        raise ConvertError(_no_weights(folder))
    return shards


def _shard_name(name: object) -> str:
    """The name of a file in this folder; `ConvertError` for any other value."""
    if not isinstance(name, str) or "\0" in name or not Path(name).name:
        raise ConvertError(f"{INDEX}: {brief(name)} is not a file name")
    return Path(name).name


def _no_weights(folder: Path) -> str:
    for path in sorted(folder.iterdir()):
        if path.suffix in PICKLES:
            return (
                f"{folder} has its weights as pickles ({path.name}), which can run any code when "
                f"read: kvarn takes safetensors; {SAFETENSORS_SPACE} converts a repository, then "
                "pull with --revision refs/pr/N"
            )
    return f"{folder} has no model*.safetensors: expected a Hugging Face model's weights"
