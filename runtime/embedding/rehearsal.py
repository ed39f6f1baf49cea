"""A short run of what a text encoder can do, which compiles the kernels that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ...models.config.text_encoders import TextEncoderConfig
from ...models.tensors import repacked_bytes
from ..gguf import open_gguf
from .loading import load_embedder

_NUMBERS = (1, 2, 3, 8)
"""Of texts: classifiers and dense layers multiply a row of each, by kernels for few or many."""


@dataclass(frozen=True)
class TextRehearsal:
    """What `kvarn embed`, or `kvarn rerank`, computes with a file; it can be sent to a process."""

    path: Path
    name: ClassVar[str] = "texts"

    @property
    def n_bytes(self) -> int:
        """Memory that a process needs for the model's matrices."""
        return repacked_bytes(open_gguf(self.path).tensors)

    def __call__(self) -> None:
        file = open_gguf(self.path)
        classifies = {"cls.weight", "cls.output.weight"} & set(file.tensors)
        ranks = classifies and TextEncoderConfig.from_metadata(file.metadata).n_labels == 1
        # The same kernels, however an embedder pools.
        embedder = load_embedder(self.path, pooling="rank" if ranks else "cls", threads=1)
        for n in _NUMBERS:
            texts = ["a"] * n
            if ranks:
                embedder.rank("b", texts)
            else:
                embedder.embed(texts)
