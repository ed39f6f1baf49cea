"""Checks of sizes: each raises `SecurityError` before a template can allocate too much memory."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from jinja2.exceptions import SecurityError

from .limits import MAX_CHARS

# Items of a list, widths, amounts, powers.
MAX_COUNT = 1_000_000
_MAX_EXPONENT = 1024
# Formats with a width of seven digits, and formats that take a width from their arguments.
_WIDE_FORMAT = re.compile(r"\d{7}")
_OPEN_FORMAT = re.compile(r"%[^a-zA-Z%]*\*|:[^{}]*\{")
# Methods of str whose numbers are widths.
_COUNTING_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})


def check_size(size: int, limit: int = MAX_CHARS) -> None:
    """Refuses a text of more than `limit` characters, or a list of as many items."""
    if size > limit:
        raise SecurityError(f"a text or list of length {size:,}, more than {limit:,}")


def whole(value: Any) -> Any:
    """`value` itself, unless it is a text or list that is too long."""
    if isinstance(value, str | bytes | list | tuple):
        check_size(len(value), _limit(value))
    return value


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuses what `*`, `+`, `%` and `**` would make too long."""
    if operator == "*":
        for sized, times in ((left, right), (right, left)):
            if isinstance(sized, str | bytes | list | tuple) and isinstance(times, int):
                check_size(len(sized) * times, _limit(sized))
    elif operator == "+" and isinstance(left, str | bytes | list | tuple):
        added = len(right) if isinstance(right, str | bytes | list | tuple) else 0
        check_size(len(left) + added, _limit(left))
    elif operator == "%" and isinstance(left, str):
        check_format(left, right if isinstance(right, tuple) else (right,))
    elif operator == "**":
        check_counts((left, right))
        if isinstance(right, int) and right > _MAX_EXPONENT:
            raise SecurityError(f"the exponent {right} is too large")


def _limit(value: Any) -> int:
    return MAX_CHARS if isinstance(value, str | bytes) else MAX_COUNT


def check_counts(values: Iterable[Any]) -> None:
    """Refuses widths and amounts larger than any template needs."""
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_COUNT:
            raise SecurityError("a width, amount or power is too large for a template")


def check_text_method(text: str, name: str, args: Sequence[Any]) -> None:
    """Refuses calls of `str` methods whose result would be too long."""
    if name == "replace" and len(args) >= 2:
        old, new = str(args[0]), str(args[1])
        times = text.count(old) if old else len(text) + 1
        check_size(len(text) + times * max(0, len(new) - len(old)))
    elif name == "join" and args and isinstance(args[0], list | tuple):
        check_join(text, args[0])
    elif name in _COUNTING_METHODS:
        check_counts(args)
    elif name in ("format", "format_map"):
        check_format(text, args)
    elif name == "translate":
        raise SecurityError("str.translate is not available to templates")


def check_join(between: str, items: Sequence[Any]) -> None:
    """Refuses joins whose result would be too long."""
    texts = sum(len(item) for item in items if isinstance(item, str))
    check_size(texts + len(between) * max(0, len(items) - 1))


def check_format(form: str, args: Iterable[Any]) -> None:
    """Refuses formats with huge widths, written out or taken from `args`."""
    if _WIDE_FORMAT.search(form):
        raise SecurityError(f"the format {form[:40]!r} asks for a width that is too large")
    if _OPEN_FORMAT.search(form):
        check_counts(args)
