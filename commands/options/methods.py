"""Command-line options of an axis (keep, attend), as the classes of its methods declare them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ...runtime.methods import Method, Option
from ...system.errors import KvarnError
from .values import file_name, integer

M = TypeVar("M", bound=Method)

PARSERS: dict[type, Callable[[str], Any]] = {int: integer, str: str, Path: file_name}
"""What an option declares as its kind → the argparse type."""


@dataclass(frozen=True)
class Axis(Generic[M]):
    """The methods of one axis on a command line: one of them by `flag`, and what they declare.

    what: what a method is called in messages. prefix: of the flags of their options. checks:
    argparse types of options whose values are refused as wrong usage. named_by: the one of the
    methods' names.
    """

    what: str
    flag: str
    methods: Mapping[str, type[M]]
    default: str
    prefix: str = ""
    checks: Mapping[str, Callable[[str], Any]] | None = None
    named_by: Callable[[str], str] = str

    def add(self, group: argparse._ActionsContainer, help: str) -> None:
        """Add the flag, with the methods' summaries after `help`, and all options."""
        said = "; ".join(self._summary(name) for name in self.methods)
        group.add_argument(
            self.flag,
            type=self.named_by,
            choices=tuple(self.methods),
            default=self.default,
            help=f"{help}: {said}".replace("%", "%%"),
        )
        for name, knowing in self._options().items():
            declared = next(iter(knowing.values()))
            choices: dict[str, Any] = (
                {"choices": declared.choices} if declared.choices else {"metavar": declared.metavar}
            )
            group.add_argument(
                self._flag(name),
                type=self._parser(name, declared),
                help=self._help(name, knowing).replace("%", "%%"),
                **choices,
            )

    def chosen(self, options: argparse.Namespace) -> M:
        """The method the options name; `KvarnError` for options that it does not know."""
        method = self._of(options, self.flag)
        given = {}
        for name, knowing in self._options().items():
            value = self._of(options, self._flag(name))
            if value is None:
                continue
            if method not in knowing:
                raise KvarnError(
                    f"{self._flag(name)} has no effect with {self.flag} {method}: it belongs to "
                    f"{self.flag} {' or '.join(knowing)}"
                )
            given[name] = value
        return self.methods[method](**given)

    def chosen_type(self, options: argparse.Namespace) -> type[M]:
        """The method the options name, without its options."""
        return self.methods[self._of(options, self.flag)]

    def named(self, text: str) -> type[M]:
        """The method that `text` names, whatever follows a colon; `KvarnError` for others."""
        name = text.partition(":")[0]
        if name not in self.methods:
            known = ", ".join(self.methods)
            raise KvarnError(f"unknown {self.what} {name!r}, expected one of {known}")
        return self.methods[name]

    def parsed(self, text: str, common: Mapping[str, Any]) -> M:
        """The method that `text` names: `hash`, or with options as `topk:index=flat:sink=8`.

        common: options for those methods that know them and are not told otherwise. Raises
        `KvarnError` for methods and options that there are not.
        """
        method, (name, *settings) = self.named(text), text.split(":")
        fields = {_written(field): field for field in method.options()}
        given = {field: value for field, value in common.items() if field in fields.values()}
        for setting in settings:
            option, _, value = setting.partition("=")
            if option not in fields:
                names = ", ".join(fields) or "none"
                raise KvarnError(
                    f"{text}: {self.what} {name} has the options {names}, not {option!r}"
                )
            try:
                declared = method.options()[fields[option]]
                given[fields[option]] = PARSERS[declared.kind](value)
            except argparse.ArgumentTypeError as error:
                raise KvarnError(f"{text}: {option}: {error}") from error
        return method(**given)

    def _options(self) -> dict[str, dict[str, Option]]:
        """Field → name of each method that has it → what that declares."""
        found: dict[str, dict[str, Option]] = {}
        for name, method in self.methods.items():
            for field, declared in method.options().items():
                found.setdefault(field, {})[name] = declared
        return found

    def _flag(self, field: str) -> str:
        return f"--{self.prefix}{_written(field)}"

    def _of(self, options: argparse.Namespace, flag: str) -> Any:
        return getattr(options, flag[2:].replace("-", "_"))

    def _parser(self, name: str, declared: Option) -> Callable[[str], Any]:
        return (self.checks or {}).get(name, PARSERS[declared.kind])

    def _summary(self, name: str) -> str:
        default = " (default)" if name == self.default else ""
        return f"{name}{default}: {self.methods[name].summary}"

    def _help(self, field: str, knowing: Mapping[str, Option]) -> str:
        """What an option does, for which methods where some do not know it, and its defaults."""
        help = next(iter(knowing.values())).help
        if len(knowing) < len(self._choosing()):
            help = f"{', '.join(knowing)}: {help}"
        defaults = {name: self.methods[name].default(field) for name in knowing}
        if len(set(defaults.values())) > 1:
            said = ", ".join(f"{name} {value}" for name, value in defaults.items())
            return f"{help} (default: {said})"
        return help if "default" in help else f"{help} (default {next(iter(defaults.values()))})"

    def _choosing(self) -> list[str]:
        """The methods that have options."""
        return [name for name, method in self.methods.items() if method.options()]


def _written(field: str) -> str:
    """How a user writes the name of a field: from_ → from, kv_type → kv-type."""
    return field.rstrip("_").replace("_", "-")
