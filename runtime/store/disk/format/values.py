"""Values of JSON, checked."""

from __future__ import annotations

from typing import Any


def text(value: Any) -> str:
    """ValueError for anything but a string."""
    if not isinstance(value, str):
        raise ValueError(f"found {value!r:.40}, expected a text")
    return value


def number(value: Any, low: int = 0, high: int = 1 << 62) -> int:
    """ValueError for anything but a whole number from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"found {value!r:.40}, expected a whole number from {low} to {high}")
    return value


def real(value: Any) -> float:
    """ValueError for anything but a finite number that is not negative."""
    if type(value) not in (int, float) or not 0 <= value < 1e30:
        raise ValueError(f"found {value!r:.40}, expected a number")
    return float(value)
