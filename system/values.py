"""Parses the values that users write in any front end: counts (4096, 128K, 1M), budgets of tokens
(4K, or shares such as 1%, 0.5%, 1e-1%), texts and paths."""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral

from .errors import KvarnError, WrongUsage
from .text import brief, shown

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Addresses of servers that only programs of this machine reach."""
LARGEST = 2**31 - 1
"""The largest count: kernels number tokens in 32 bits."""
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_COUNT = re.compile(r"(-?\d{1,100})([km]?)", re.ASCII | re.IGNORECASE)
_SHARE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?(?:e[+-]?\d{1,2})?)%", re.ASCII | re.IGNORECASE)
_BYTES = re.compile(r"(\d{1,15}(?:\.\d{1,3})?)([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
EXPECTED = "a share (more than 0% to 100%) or a count of tokens from 1 on"
"""The values of a budget, for messages."""


class WrongValue(WrongUsage):
    """An option cannot have this value.

    expected: the values that it can have. where: the option's name, if it has one.
    """

    def __init__(self, expected: str, value: object, where: str = "") -> None:
        found = shown(value) if isinstance(value, str) else brief(value)
        self.expected, self._message = expected, f"expected {expected}, found {found}"
        super().__init__(f"{where and where + ': '}{self._message}")

    def for_option(self, where: str) -> WrongValue:
        """The same error for the option that `where` names."""
        error = copy(self)
        error.args = (f"{where}: {self._message}",)
        return error


def count(value: object, least: int = 0, most: int = LARGEST, units: bool = True) -> int:
    """A whole number from `least` to `most`, as 512, "512" or, with units, "128K" (1,024 each) or
    "1M" (1,048,576); `WrongValue` for anything else."""
    number = None
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
    elif isinstance(value, str) and (match := _COUNT.fullmatch(value)) and (units or not match[2]):
        number = int(match[1]) * _UNITS[match[2].lower()]
    if number is None or not least <= number <= most:
        raise WrongValue(f"a whole number from {least} to {most}", value)
    return number


def count_named(name: str, value: object, least: int = 0) -> int:
    """`count`, whose error names the argument."""
    try:
        return count(value, least)
    except WrongValue as wrong:
        raise wrong.for_option(name) from None


def n_bytes(value: object) -> int:
    """A number of bytes, as 0, "500M" or "32G", with units of 1,024; `WrongValue` for anything
    else."""
    match = _BYTES.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise WrongValue("bytes, as 500M or 32G", value)
    return int(Fraction(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " "))


def text(value: object) -> str:
    """Any text without a NUL."""
    if not isinstance(value, str) or "\0" in value:
        raise WrongValue("a text", value)
    return value


def path_text(value: object) -> str:
    """A path, or a name that becomes one: a text that is not empty, as "" would mean the working
    folder."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise WrongValue("a path", value)
    return value


@dataclass(frozen=True, slots=True, repr=False)
class Budget:
    """A number of tokens: a `share` of the stored ones, in (0, 1], or `number` of them.

    Its repr is that of its text: digests of methods, which name answers and records, depend on it.
    """

    share: Fraction = Fraction(0)
    number: int = 0

    @classmethod
    def parse(cls, value: Budget | str | int) -> Budget:
        """ "1%", "1e-1%" → a share; 2048, "2048", "2K" → a number. Raises `WrongValue`."""
        if isinstance(value, Budget):
            return value
        words = value.strip() if isinstance(value, str) else value
        if isinstance(words, str) and (match := _SHARE.fullmatch(words)):
            share = Fraction(match[1]) / 100
            if 0 < share <= 1:
                return cls(share=share)
        try:
            return cls(number=count(words, 1))
        except WrongValue:
            raise WrongValue(EXPECTED, value) from None

    @classmethod
    def parse_named(cls, name: str, value: Budget | str | int, error: type[KvarnError]) -> Budget:
        """`parse` for a method that calls the value `name` and raises `error`."""
        try:
            return cls.parse(value)
        except WrongValue as wrong:
            raise error(f"{name} is {value!r:.80}, expected {wrong.expected}") from None

    def tokens(self, stored: int) -> int:
        """Tokens out of `stored`: ⌈share · stored⌉, or the number."""
        taken, of = self.share.as_integer_ratio()
        return self.number or -(-stored * taken // of)

    def __str__(self) -> str:
        return str(self.number) if self.number else f"{float(self.share * 100):.15g}%"

    def __repr__(self) -> str:
        return repr(str(self))
