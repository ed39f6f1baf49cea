"""One vector of the hidden states of a text's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...ops.arrays import F32
from ...system.errors import KvarnError
from ...system.text import brief

POOLINGS = ("mean", "cls", "last", "rank")
"""The mean of all tokens, the first one, the last one, or the first one scored by a classifier.
In a GGUF file (`ARCHITECTURE.pooling_type`) they have the numbers from 1 on."""
_UNSAID = 0


class EmbeddingError(KvarnError):
    """Texts cannot be turned into vectors or scores as they are asked for."""


def pooling_of_file(architecture: str, metadata: Mapping[str, Any]) -> str | None:
    """What a file says (`ARCHITECTURE.pooling_type`), None where it says nothing; `EmbeddingError`
    for a number that is none."""
    key = f"{architecture}.pooling_type"
    value = metadata.get(key)
    if value is None:
        return None
    is_number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if is_number and value == _UNSAID:
        return None
    if not is_number or value not in range(1, len(POOLINGS) + 1):
        raise EmbeddingError(f"{key} is {brief(value)}, expected 0 to {len(POOLINGS)}")
    return POOLINGS[int(value) - 1]


def checked_pooling(name: str) -> str:
    """The name; `EmbeddingError` unless it is one of `POOLINGS`."""
    if name not in POOLINGS:
        raise EmbeddingError(f"pooling is {name!r:.40}, expected one of {', '.join(POOLINGS)}")
    return name


def pool(hidden: F32, pooling: str) -> F32:
    """float32 (D,) of hidden states float32 (T, D). "rank" takes the first, as "cls"."""
    if pooling == "mean":
        mean: F32 = hidden.mean(0, dtype=np.float64).astype(np.float32)
        return mean
    one: F32 = hidden[-1 if pooling == "last" else 0].copy()
    return one
