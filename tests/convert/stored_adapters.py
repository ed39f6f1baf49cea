"""Tiny adapters as PEFT stores them, made of their shapes alone, and their golden results.

Weights follow from the names of their tensors, as those of the models (`stored_models`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import stored_models
from .hf_folders import write_safetensors

FOLDER = Path(__file__).parent / "golden" / "adapters"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
_PREFIX, _COPY = "base_model.model.", ".base_layer.weight"


@dataclass(frozen=True)
class StoredAdapter:
    """One golden file."""

    config: dict[str, Any]
    """config.json of the model."""
    model_shapes: dict[str, list[int]]
    """Of the tensors of model.safetensors."""
    settings: dict[str, Any]
    """adapter_config.json, as PEFT writes it."""
    shapes: dict[str, list[int]]
    """Of the tensors of adapter_model.safetensors."""
    tensors: dict[str, str] | None
    """Type, shape and CRC-32 of the bytes of each tensor that llama.cpp's converter writes, as it
    does without the patterns; None where it fails."""
    logits: list[list[float]]
    """Some of the logits by transformers and PEFT, see `stored_models.KEPT`."""

    @staticmethod
    def read(name: str) -> StoredAdapter:
        """The file of a name in `NAMES`."""
        return StoredAdapter(**json.loads((FOLDER / f"{name}.json").read_text()))

    def write_model(self, folder: Path) -> None:
        """config.json and model.safetensors."""
        stored_models.Stored(self.config, self.model_shapes, {}, {}, []).write(folder)

    def write(self, folder: Path) -> None:
        """adapter_config.json and adapter_model.safetensors."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps(self.settings))
        made = stored_models.weights(self.shapes)
        for name in made:
            if name.endswith(_COPY):  # the model's own
                of_model = f"{name.removeprefix(_PREFIX).removesuffix(_COPY)}.weight"
                made[name] = stored_models.weights({of_model: self.shapes[name]})[of_model]
        write_safetensors(folder / "adapter_model.safetensors", made)
