"""A model's folder: its JSON files and the tensors of all its shards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ConvertError
from .safetensors import StoredTensor, read_header

INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_SAFETENSORS_SPACE = "https://huggingface.co/spaces/safetensors/convert"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; `ConvertError` for one that cannot be read as such."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{path.name}: no valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConvertError(f"{path.name}: expected a JSON object, found {type(value).__name__}")
    return value


def optional_json(path: Path) -> dict[str, Any]:
    """The same; an empty object where there is no such file."""
    return read_json(path) if path.is_file() else {}


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model's folder; `ConvertError` where there is none."""
    if not folder.is_dir():
        raise ConvertError(f"{folder}: no such folder: expected that of a Hugging Face model")
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
    missing = [name for name in listed if name not in tensors]
    if missing:
        raise ConvertError(f"{INDEX} lists {missing[0]} and the shards do not have it")
    return tensors


def _shards(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        weight_map = read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, Mapping) or not weight_map:
            raise ConvertError(f"{INDEX} has no weight_map")
        names = sorted({Path(str(name)).name for name in weight_map.values()})
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ConvertError(
                f"{folder} lacks {len(missing)} of {len(names)} shards, as {missing[0]}: pull again"
            )
        return [folder / name for name in names]
    shards = sorted(folder.glob("model*.safetensors"))
    if not shards:
        raise ConvertError(_no_weights(folder))
    return shards


def _no_weights(folder: Path) -> str:
    for path in sorted(folder.iterdir()):
        if path.suffix in _PICKLES:
            return (
                f"{folder} has its weights as pickles ({path.name}), which can run any code when "
                f"read: kvarn takes safetensors; {_SAFETENSORS_SPACE} converts a repository, then "
                "pull with --revision refs/pr/N"
            )
    return f"{folder} has no model*.safetensors: expected a Hugging Face model's weights"
