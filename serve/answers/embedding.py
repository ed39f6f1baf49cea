"""Vectors of texts, for all APIs."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from ...runtime.serving.prompt import Prompt, Text
from ..service import Service
from ..wire.errors import ApiError, invalid

MOST_TEXTS = 2048
"""OpenAI's limit of one request."""


@dataclass(frozen=True)
class TextVectors:
    """vectors: float32, little endian, each of norm 1. n_tokens: of all texts."""

    vectors: list[bytes]
    n_tokens: int

    def numbers(self) -> list[list[float]]:
        """The vectors as numbers."""
        made = []
        for vector in self.vectors:
            values = array("f", vector)
            if sys.byteorder == "big":
                values.byteswap()
            made.append(values.tolist())
        return made


async def embed_texts(
    service: Service,
    inputs: Sequence[str | list[int]],
    dimensions: int | None,
    truncate: bool = False,
) -> TextVectors:
    """A vector for each input; truncate: cut those that are too long. Raises `RequestError` for
    none, for empty ones and for a length that the model's vectors do not have."""
    n_embd = service.ready().n_embd
    if dimensions is not None and dimensions != n_embd:
        raise invalid("dimensions", dimensions, f"{n_embd}, which the model's vectors have")
    if not 1 <= len(inputs) <= MOST_TEXTS:
        raise ApiError(400, f"input has {len(inputs)} texts, expected 1 to {MOST_TEXTS}", "input")
    for i, one in enumerate(inputs):
        if not one:
            raise invalid(f"input[{i}]", one, "a text that is not empty")
    prompts: list[Prompt] = [Text(one) if isinstance(one, str) else one for one in inputs]
    vectors = await service.engine.embed(prompts, truncate)
    return TextVectors(vectors.vectors, vectors.n_tokens)
