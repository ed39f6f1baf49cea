"""The adapters that a pack's model had, in `pack.json`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....loading.adapter_files import AdapterFacts
from .values import text

_MOST = 64
"""Adapters of one model."""


def adapters_data(adapters: Sequence[AdapterFacts]) -> list[list[Any]]:
    """[[digest, scale, path], …], for JSON."""
    return [[adapter.digest, float(adapter.scale), adapter.path] for adapter in adapters]


def adapters_of(data: Any) -> tuple[AdapterFacts, ...]:
    """Read adapters from JSON. Raises ValueError or TypeError where `adapters_data` cannot have
    written it."""
    if not isinstance(data, list) or not 1 <= len(data) <= _MOST:
        raise ValueError(f"adapters are {data!r:.100}")
    return tuple(
        AdapterFacts(bytes.fromhex(digest).hex(), _scale(scale), text(path))
        for digest, scale, path in data
    )


def _scale(value: Any) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise ValueError(f"the scale of an adapter is {value!r:.40}")
    return value


def listed(adapters: Sequence[AdapterFacts]) -> str:
    """Adapters as a message names them."""
    return ", ".join(map(str, adapters)) or "none"
