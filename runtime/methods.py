"""What methods of the four axes (store, keep, attend, prefill) have in common.

A method is a frozen dataclass of options; `open` makes the object for one context. Its fields
declare command-line options (`option`), and the registry of its axis lists it. The command line,
`import kvarn` and tables of the documents are made from these two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from ..system.errors import KvarnError
from ..system.values import Budget, WrongValue, count, path_text, text

Progress = Callable[[int, int], None]
"""Called with (done, in all), in tokens or layers."""

_METADATA = "option"


Kind = Callable[[Any], Any]
"""Turns what a user wrote into a value; `WrongValue` for what the option cannot have."""


_KINDS: dict[Kind, Kind] = {int: count, str: text, Path: path_text, Budget: Budget.parse}


@dataclass(frozen=True, slots=True)
class Option:
    """How a user gives one field of a method.

    kind: int for a count, str, Budget, Path for the name of a file, which stays text, or another
    `Kind`. choices: all valid values.
    """

    help: str
    kind: Kind = str
    metavar: str = "N"
    choices: tuple[str, ...] = ()

    def read(self, value: object) -> Any:
        """The field's value for what a user wrote; `WrongValue` if there is none."""
        if self.choices and value not in self.choices:
            raise WrongValue(f"one of {', '.join(self.choices)}", value)
        return _KINDS.get(self.kind, self.kind)(value)


def option(
    default: Any, help: str, kind: Kind = str, *, metavar: str = "N", choices: tuple[str, ...] = ()
) -> Any:
    """A dataclass field with a command-line option; a subclass may give it another default."""
    return field(default=default, metadata={_METADATA: Option(help, kind, metavar, choices)})


_COUNT, _COUNTS = Option("", int), ("int", "int | None", int)
"""How counts are read that have no option; their types, as fields are annotated."""


class Method:
    """The options of one method, as a user writes them; a subclass is a frozen dataclass."""

    name: ClassVar[str]
    """Its name on command lines."""
    summary: ClassVar[str]
    """What it does, for help texts and documents; begins in lower case, without a full stop."""
    short: ClassVar[str] = ""
    """The option whose value may follow the name after a colon, as in `blocks:4096`."""

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The fields with a command-line option, those of base classes first."""
        options: dict[str, Option] = {}
        for owner in reversed(cls.__mro__):
            for name, declared in owner.__dict__.get("__dataclass_fields__", {}).items():
                if _METADATA in declared.metadata:
                    options[name] = declared.metadata[_METADATA]
        return options

    @classmethod
    def variants(cls) -> Sequence[Self]:
        """Choices of options that need kernels of their own, to be compiled by `kvarn build`."""
        return (cls(),)

    def check_fields(self, error: type[KvarnError], of: str = "") -> None:
        """Raise `error` for a field of counts that is none, and an option that has none of its
        choices; a count as text becomes a number. of: begins the message."""
        declared = self.options()
        for one in fields(self):  # type: ignore[arg-type]
            option, value = declared.get(one.name, _COUNT), getattr(self, one.name)
            if (one.type not in _COUNTS and not option.choices) or value is one.default:
                continue
            try:
                object.__setattr__(self, one.name, option.read(value))
            except WrongValue as wrong:
                name = one.name.rstrip("_")
                raise error(f"{of}{name} is {value!r:.80}, expected {wrong.expected}") from None


def called(method: Method) -> str:
    """A method with those of its options that are not the defaults: "topk index=flat"."""
    return " ".join([method.name, *changed_options(method)])


def changed_options(method: Method) -> list[str]:
    """The options of a method that are not the defaults, as "index=flat"."""
    return [
        f"{option.name.rstrip('_')}={getattr(method, option.name)}"
        for option in fields(method)  # type: ignore[arg-type]
        if getattr(method, option.name) != option.default
    ]


def registered(names: Mapping[str, Any], axis: type) -> dict[str, Any]:
    """Name → method, for all methods of an axis among a module's names, in their order."""
    types = [value for value in names.values() if isinstance(value, type)]
    methods: list[Any] = [t for t in types if issubclass(t, axis) and not inspect.isabstract(t)]
    return {method.name: method for method in methods}
