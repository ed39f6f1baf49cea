"""What stores, keep and attend methods may know of a model: its file and sizes, no weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ...models.config import ModelConfig
from ...system.text import one_line
from ..gguf import GGUFFile
from .fingerprint import fingerprint, tokenizer_digest

T = TypeVar("T")


@dataclass(frozen=True)
class ModelInfo:
    """Facts of one loaded model.

    tell: passes a line on to whoever loaded it. measure_keys: reads tokens with it and returns the
    mean keys, float32 (layers, J, E), see `store.centre`. memory: what `once` has computed.
    """

    file: GGUFFile
    config: ModelConfig
    tell: Callable[[str], None]
    measure_keys: Callable[[], NDArray[np.float32]]
    memory: dict[Callable[[GGUFFile], Any], Any]

    def once(self, compute: Callable[[GGUFFile], T]) -> T:
        """compute(file), which is called only the first time."""
        if compute not in self.memory:
            self.memory[compute] = compute(self.file)
        return cast(T, self.memory[compute])

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def name(self) -> str:
        """`general.name`, or the file's name where the file has none, as `one_line` writes it."""
        name = self.file.metadata.get("general.name")
        return one_line(name if isinstance(name, str) and name else self.path.stem, 300)

    @property
    def fingerprint(self) -> str:
        """What tells this model from others, see `fingerprint.fingerprint`."""
        return self.once(fingerprint)

    @property
    def tokenizer_digest(self) -> str:
        """What tells its tokenizer from others, see `fingerprint.tokenizer_digest`."""
        return self.once(tokenizer_digest)
