"""Command-line options of an axis (keep, attend, prefill), as the classes of its methods declare
them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ...runtime.axes import Axis
from ...runtime.methods import Kind, Method
from .values import count, file_name, typed

M = TypeVar("M", bound=Method)

_TYPES: Mapping[Kind, Callable[[str], Any]] = {int: count, Path: file_name}


def flag(word: str) -> str:
    """How a command line writes a word: keep_budget → --keep-budget."""
    return "--kv" if word == "store" else f"--{word.replace('_', '-')}"


def add_axis(
    group: argparse._ActionsContainer,
    axis: Axis[M],
    help: str,
    named_by: Callable[[str], str] = str,
) -> None:
    """Add the flag that names a method, with the methods' summaries after `help`, and all options.

    named_by: the argparse type of the name.
    """
    said = "; ".join(_summary(axis, name) for name in axis.methods)
    group.add_argument(
        flag(axis.word),
        type=named_by,
        choices=tuple(axis.methods),
        help=f"{help}: {said}".replace("%", "%%"),
    )
    for word, fields in axis.options().items():
        declared = axis.declared(fields)
        choices: dict[str, Any] = (
            {"choices": declared.choices}
            if declared.choices
            else {
                "metavar": declared.metavar,
                "type": _TYPES.get(declared.kind, typed(declared.read)),
            }
        )
        group.add_argument(flag(word), help=_help(axis, fields).replace("%", "%%"), **choices)


def _summary(axis: Axis[M], name: str) -> str:
    default = " (default)" if name == axis.default else ""
    return f"{name}{default}: {axis.methods[name].summary}"


def _help(axis: Axis[M], fields: Mapping[str, str]) -> str:
    """What an option does, for which methods where some do not know it, and its defaults."""
    help = axis.declared(fields).help
    if len(fields) < sum(bool(method.options()) for method in axis.methods.values()):
        help = f"{', '.join(fields)}: {help}"
    defaults = {name: axis.methods[name].default(field) for name, field in fields.items()}
    if len(set(defaults.values())) > 1:
        said = ", ".join(f"{name} {value}" for name, value in defaults.items())
        return f"{help} (default: {said})"
    return help if "default" in help else f"{help} (default {next(iter(defaults.values()))})"
