"""What follows a model that makes vectors, as the modules.json of sentence-transformers lists it:
pooling, and of some models two dense layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, PoolingType

from ..errors import ConvertError
from .files.jsons import brief, read_bytes
from .files.safetensors import StoredTensor, read_header

_MAX_BYTES = 1 << 20
_POOLINGS = {
    "pooling_mode_mean_tokens": PoolingType.MEAN,
    "pooling_mode_cls_token": PoolingType.CLS,
    "pooling_mode_lasttoken": PoolingType.LAST,
}
_DENSE = ("dense_2", "dense_3")


@dataclass(frozen=True)
class Modules:
    """What follows the hidden states."""

    pooling: PoolingType | None = None
    dense: tuple[StoredTensor, ...] = ()
    """The matrices of dense layers, one after the other."""

    @property
    def tensors(self) -> dict[str, StoredTensor]:
        """The dense layers by names that gguf-py's table knows."""
        return {f"{name}_out.weight": tensor for name, tensor in zip(_DENSE, self.dense)}

    def add(self, writer: GGUFWriter) -> None:
        """The keys of the file; a classifier among its tensors is what reads the hidden states."""
        pooling = self.pooling
        if any(name.startswith("cls.") for name in writer.tensors[0]):
            pooling = PoolingType.RANK
        if pooling is not None:
            writer.add_pooling_type(pooling)
        for name, tensor in zip(_DENSE, self.dense):
            writer.add_dense_features_dims(name, tensor.shape[1], tensor.shape[0])


def read_modules(folder: Path, name: str) -> Modules:
    """The modules of a model's folder, none where it has no modules.json.

    name: `general.architecture` of the file. `ConvertError` for what such a file cannot have.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return Modules()
    modules = _json(path)
    pooling, dense = None, []
    for module in modules if isinstance(modules, list) else []:
        kind = module.get("type") if isinstance(module, Mapping) else None
        if not isinstance(kind, str) or kind.endswith((".Transformer", ".Normalize")):
            continue
        if kind.endswith(".Pooling"):
            pooling = _pooling_of(_folder(folder, module.get("path")))
        elif kind.endswith(".Dense") and name == "gemma-embedding":
            dense.append(_dense_of(_folder(folder, module.get("path"))))
        else:
            raise ConvertError(
                f"modules.json: {brief(kind)} follows the encoder, which a {name} file cannot have"
            )
    if dense and [t.shape[::-1] for t in dense[1:]] != [t.shape for t in dense[:1]]:
        shapes = ", ".join(str(tensor.shape) for tensor in dense)
        raise ConvertError(
            f"modules.json: dense layers of the shapes {shapes}, expected two, of which the second "
            "undoes the first's change of length"
        )
    return Modules(pooling, tuple(dense))


def _folder(folder: Path, name: object) -> Path:
    if not isinstance(name, str) or name in ("", "..") or "\0" in name or Path(name).name != name:
        raise ConvertError(f"modules.json: a module is in {brief(name)}, expected a folder")
    return folder / name


def _pooling_of(folder: Path) -> PoolingType:
    settings = _json(folder / "config.json")
    chosen = settings if isinstance(settings, Mapping) else {}
    modes = [key for key, on in chosen.items() if key.startswith("pooling_mode_") and on is True]
    if isinstance(chosen.get("pooling_mode"), str):  # as newer versions write it
        mode = {"mean": "mean_tokens", "cls": "cls_token"}.get(chosen["pooling_mode"])
        modes = [f"pooling_mode_{mode or chosen['pooling_mode']}"]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise ConvertError(
            f"{folder.name}/config.json: the pooling is {brief(', '.join(modes))}, expected one of "
            f"{', '.join(_POOLINGS)}"
        )
    return _POOLINGS[modes[0]]


def _dense_of(folder: Path) -> StoredTensor:
    settings = _json(folder / "config.json")
    activation = settings.get("activation_function") if isinstance(settings, Mapping) else None
    if not isinstance(activation, str) or not activation.endswith(".Identity"):
        raise ConvertError(
            f"{folder.name}/config.json: the activation is {brief(activation)}, expected Identity"
        )
    path = folder / "model.safetensors"
    if not path.is_file():
        raise ConvertError(f"{folder.name} has no model.safetensors: expected a dense layer's")
    tensors = read_header(path)
    weight = tensors.get("linear.weight")
    if weight is None or len(tensors) != 1 or len(weight.shape) != 2:
        raise ConvertError(
            f"{folder.name}/model.safetensors has {brief(', '.join(tensors))}, expected "
            "linear.weight alone: a file's dense layers have no bias"
        )
    return weight


def _json(path: Path) -> Any:
    if not path.is_file():
        raise ConvertError(f"modules.json: {path.parent.name} has no {path.name}")
    try:
        return json.loads(read_bytes(path, _MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{path.name} is no JSON: {brief(str(error))}") from error
