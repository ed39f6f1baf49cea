"""The axes of a context as words name them: a method by one word, its options by others.

The words are keys with values: command lines write them as flags (`--keep-budget 20%`), programs
in C as names in JSON (`"keep_budget": "20%"`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..system.errors import KvarnError, WrongUsage
from ..system.values import WrongValue
from .attend import ATTENDS, Attend
from .keep import KEEPS, Keep
from .methods import Kind, Method, Option
from .prefill import PREFILLS, Prefill
from .store import STORES, Store

M = TypeVar("M", bound=Method)
R = TypeVar("R", bound=type[Method])
Spell = Callable[[str], str]
"""How the user wrote a word: "keep_budget" → "--keep-budget"."""


class RequestError(WrongUsage):
    """Words of a context that have no effect together, exclude each other, or have values that
    methods refuse."""


class _Names(tuple[str, ...]):
    """Names of methods; `name:value`, too, is one of them for those in `short`."""

    short: frozenset[str] = frozenset()

    def __contains__(self, text: object) -> bool:
        name, colon, _ = text.partition(":") if isinstance(text, str) else ("", "", "")
        return super().__contains__(text) or (bool(colon) and name in self.short)


@dataclass(frozen=True)
class Axis(Generic[M]):
    """The methods of one axis: `word` names one of them, and `prefix` with the name of a field an
    option."""

    word: str
    methods: Mapping[str, type[M]]
    default: str
    prefix: str = ""

    def options(self) -> dict[str, dict[str, str]]:
        """Word of each option → name of each method that has it → the field that it gives there."""
        options: dict[str, dict[str, str]] = {}
        for name, method in self.methods.items():
            for field in method.options():
                options.setdefault(self.prefix + _written(field), {})[name] = field
        return options

    def declared(self, fields: Mapping[str, str]) -> Option:
        """The declaration of an option of `options()`, by the first method that has it."""
        name, field = next(iter(fields.items()))
        return self.methods[name].options()[field]

    def names(self) -> tuple[str, ...]:
        """The words that may name a method."""
        names = _Names(self.methods)
        names.short = frozenset(name for name, method in self.methods.items() if method.short)
        return names

    def kinds(self) -> dict[str, Kind]:
        """Word → the function that reads its value, for the method's name and all options."""
        options = {word: self.declared(fields).read for word, fields in self.options().items()}
        return {self.word: Option("", choices=self.names()).read, **options}

    def chosen(self, words: Mapping[str, Any], spell: Spell = str) -> M:
        """The method that the words name, with the options among them; None: not said.

        Raises `RequestError` for options that it does not know, refuses, or that are given twice.
        """
        method, given = self._read(words.get(self.word) or self.default)
        name = method.name
        for word, fields in self.options().items():
            if (value := words.get(word)) is None:
                continue
            if name not in fields:
                axis = spell(self.word)
                raise RequestError(
                    f"{spell(word)} has no effect with {axis} {name}: it belongs to {axis} "
                    f"{', '.join(fields)}"
                )
            if fields[name] in given:
                raise RequestError(f"{words[self.word]} and {spell(word)} say the same: omit one")
            given[fields[name]] = value
        return make_method(method, given)

    def find(self, text: str) -> type[M]:
        """The method that `text` names, whatever follows a colon; `RequestError` for others."""
        name = text.partition(":")[0]
        if name not in self.methods:
            known = ", ".join(self.methods)
            raise RequestError(f"unknown {self.word} {name!r}, expected one of {known}")
        return self.methods[name]

    def parsed(self, text: str, common: Mapping[str, Any]) -> M:
        """The method that `text` names: `hash`, or with options as `topk:index=flat:sink=8`.

        common: options for methods that have them, unless `text` gives others. Raises
        `RequestError` for unknown methods and options and for what the method refuses, `WrongValue`
        for values of another kind.
        """
        method, given = self._read(text)
        known = method.options()
        return make_method(
            method, {field: x for field, x in common.items() if field in known} | given
        )

    def _read(self, text: str) -> tuple[type[M], dict[str, Any]]:
        """The method and the options that `text` gives."""
        method, (name, *settings) = self.find(text), text.split(":")
        fields = {_written(field).replace("_", "-"): field for field in method.options()}
        options = {}
        for setting in settings:
            option, equals, value = setting.partition("=")
            if not equals and method.short:
                option, value = _written(method.short), setting
            if option not in fields:
                names = ", ".join(fields) or "none"
                raise RequestError(
                    f"{text}: {self.word} {name} has the options {names}, not {option!r}"
                )
            try:
                options[fields[option]] = method.options()[fields[option]].read(value)
            except WrongValue as wrong:
                raise wrong.for_option(f"{text}: {option}") from wrong
        return method, options


def make_method(method: type[M], options: dict[str, Any]) -> M:
    """The method with these options; `RequestError` where it refuses them."""
    try:
        return method(**options)
    except KvarnError as error:
        raise RequestError(str(error)) from error


ATTEND_AXIS: Axis[Attend] = Axis("method", ATTENDS, "full")
KEEP_AXIS: Axis[Keep] = Axis("keep", KEEPS, "all", prefix="keep_")
PREFILL_AXIS: Axis[Prefill] = Axis("prefill", PREFILLS, "exact", prefix="prefill_")


REGISTRIES: dict[type[Method], dict[str, Any]] = {
    Attend: ATTENDS,
    Keep: KEEPS,
    Prefill: PREFILLS,
    Store: STORES,
}


def register(method: R) -> R:
    """Class decorator: adds a method from outside kvarn to its axis, by its `name`.

    From then on this process has it as kvarn.CLASS and in the options of command lines
    (`kvarn.cli.main`). Raises `KvarnError` for a class that is not a method, and for a name that
    another method has.
    """
    doing = f"registering {method.__module__}.{method.__qualname__}"
    for axis, methods in REGISTRIES.items():
        if isinstance(method, type) and issubclass(method, axis):
            is_described = hasattr(method, "name") and hasattr(method, "summary")
            if inspect.isabstract(method) or not is_described:
                raise KvarnError(f"{doing}: it lacks a name, a summary or `open`")
            if methods.get(method.name, method) is not method:
                other = methods[method.name]
                raise KvarnError(
                    f"{doing}: {other.__module__}.{other.__qualname__} has the name "
                    f"{method.name!r}; choose another"
                )
            methods[method.name] = method
            return method
    raise KvarnError(
        f"{doing}: it derives from none of {', '.join(axis.__name__ for axis in REGISTRIES)}"
    )


def _written(field: str) -> str:
    """How a user writes the name of a field: from_ → from."""
    return field.rstrip("_")
