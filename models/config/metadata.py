"""Reads one architecture's keys from GGUF metadata, and checks their types and bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...system.text import brief
from ..errors import ModelError
from .bounds import MAX_VOCAB


def count_tokens(metadata: Mapping[str, Any]) -> int:
    """The tokens that a file lists. Raises `ModelError` for none, or too many."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not 1 <= len(tokens) <= MAX_VOCAB:
        raise ModelError(
            f"cannot configure the model: tokenizer.ggml.tokens is {brief(tokens)}, expected a "
            f"list of 1 to {MAX_VOCAB:,} strings"
        )
    return len(tokens)


class Keys:
    """The keys `{prefix}.…` of a file's metadata, each checked when it is read.

    The methods raise a `ModelError` that names the key, its value and the expected values.
    """

    def __init__(self, metadata: Mapping[str, Any], prefix: str) -> None:
        self._metadata = metadata
        self._prefix = prefix

    def error(self, key: str, value: object, expected: str) -> ModelError:
        """The error for a key with a wrong value, or without one (None)."""
        state = "missing" if value is None else brief(value)
        return ModelError(
            f"cannot configure the model: {self._prefix}.{key} is {state}, expected {expected}"
        )

    def get(self, key: str) -> Any:
        """The file's value, unchecked, or None."""
        return self._metadata.get(f"{self._prefix}.{key}")

    def listed(self, key: str) -> list[Any] | None:
        """The elements of the file's array, unchecked; None where the value is no array."""
        value = self.get(key)
        return list(value) if isinstance(value, (list, tuple, np.ndarray)) else None

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int) -> int:
        """An integer in low..high; an array of equal values counts as one value."""
        value = self.get(key)
        if isinstance(value, (list, tuple, np.ndarray)):
            value = self._repeated(key, value)
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        is_valid = whole and low <= value <= high
        expected = f"an integer from {low} to {high}"
        return int(self._checked(key, value, default, is_valid, expected))

    def per_layer(
        self, key: str, n_layers: int, default: int | None = None, *, low: int = 1, high: int
    ) -> tuple[int, ...]:
        """An integer in low..high for each layer: one for all, or an array of at least n_layers."""
        numbers = self.listed(key)
        if numbers is None:
            return (self.integer(key, default, low=low, high=high),) * n_layers
        whole = all(isinstance(n, (int, np.integer)) and low <= n <= high for n in numbers)
        if not whole or len(numbers) < n_layers:
            expected = f"integers from {low} to {high} for {n_layers} layers"
            raise self.error(key, self.get(key), expected)
        return tuple(int(n) for n in numbers[:n_layers])

    def _repeated(self, key: str, values: Sequence[Any] | np.ndarray) -> Any:
        if isinstance(values, np.ndarray):
            alike = values.ndim == 1 and values.size > 0 and bool((values == values[0]).all())
        else:
            alike = len(values) > 0 and all(type(v) is int and v == values[0] for v in values)
        if not alike:
            raise self.error(key, values, "one value for all layers")
        return values[0]

    def number(
        self, key: str, default: float | None = None, *, low: float = 0.0, high: float = math.inf
    ) -> float:
        """A finite number in low..high."""
        value = self.get(key)
        numeric = isinstance(value, (int, float, np.integer, np.floating))
        is_finite = numeric and not isinstance(value, bool) and math.isfinite(value)
        expected = f"a finite number from {low:g} to {high:g}"
        return float(
            self._checked(key, value, default, is_finite and low <= value <= high, expected)
        )

    def flag(self, key: str, default: bool) -> bool:
        """A truth value."""
        value = self.get(key)
        is_valid = isinstance(value, (bool, np.bool_))
        return bool(self._checked(key, value, default, is_valid, "true or false"))

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self.get(key)
        return str(self._checked(key, value, default, isinstance(value, str), "a string"))

    def _checked(self, key: str, value: Any, default: object, is_valid: bool, expected: str) -> Any:
        """The value, or where the file has none the default. Raises for none of both."""
        if value is None and default is not None:
            return default
        if not is_valid:
            raise self.error(key, value, expected)
        return value

    def require(self, key: str, default: int, expected: int, high: int) -> None:
        """Raise unless the number of the key, up to `high`, is the expected one."""
        if self.integer(key, default, low=0, high=high) != expected:
            raise self.error(key, self.get(key), str(expected))

    def refuse(self, key: str, allowed: object, why: str) -> None:
        """Raise if the key has a value other than `allowed`."""
        value = self.get(key)
        if value is None:
            return
        if isinstance(value, np.ndarray) or value != allowed:
            raise self.error(key, value, f"{allowed}: {why}")
