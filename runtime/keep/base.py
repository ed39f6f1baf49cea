"""The interface of every keep method."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from ...system.errors import KvarnError

if TYPE_CHECKING:
    from ...ops.evict import Staging
    from ..store import SlotStore
    from .slots import Slots

_SHARE = re.compile(r"(\d+(?:\.\d+)?)%", re.ASCII)


class KeepError(KvarnError):
    """A keep method cannot work with what it was given."""


class Keep(ABC):
    """Decides which tokens of a context stay in its store."""

    name: ClassVar[str]

    @abstractmethod
    def evicting(self, n_ctx: int) -> Evicting | None:
        """The method, where a context of `n_ctx` tokens needs it; None where all have room."""


@dataclass(frozen=True)
class Evicting(Keep):
    """A keep method with a budget, the tokens that each KV head of a global layer keeps.

    budget: a number of tokens, or a share of the context such as "20%".
    Raises `KeepError` for any other budget, and for one that protected tokens use up.
    """

    budget: int | str = "20%"

    def __post_init__(self) -> None:
        budget = parse_budget(self.budget)
        if isinstance(budget, int):
            self._check(budget, f"a budget of {budget} tokens")

    @property
    @abstractmethod
    def protected(self) -> int:
        """Tokens of a full cache that the next token cannot replace."""

    @abstractmethod
    def open(self, store: SlotStore, layer: int, staging: Staging) -> Slots:
        """The slots of one global layer; `staging` is shared by all layers."""

    def evicting(self, n_ctx: int) -> Evicting | None:
        slots = self.slots(n_ctx)
        if slots >= n_ctx:
            return None
        self._check(slots, f"a budget of {self.budget} of {n_ctx} tokens")
        return self

    def __str__(self) -> str:
        """The method and what decides what it evicts, but for the budget."""
        options = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if f.name != "budget"]
        return " ".join([self.name, *options])

    def slots(self, n_ctx: int) -> int:
        """The budget in a context of `n_ctx` tokens."""
        budget = parse_budget(self.budget)
        return budget if isinstance(budget, int) else math.ceil(n_ctx * budget)

    def _check(self, slots: int, what: str) -> None:
        if slots <= self.protected:
            raise KeepError(
                f"keep {self.name}: {what} leaves nothing to evict beside {self.protected} "
                f"protected tokens; use at least {self.protected + 1}"
            )


def parse_budget(text: int | str) -> int | Fraction:
    """A number of tokens, or a share in (0, 1] written as "20%"; `KeepError` for others."""
    text = str(text)
    match = _SHARE.fullmatch(text)
    if match and 0 < Fraction(match[1]) <= 100:
        return Fraction(match[1]) / 100
    if text.isascii() and text.isdigit() and int(text):
        return int(text)
    raise KeepError(
        f"a keep budget of {text!r}, expected a number of tokens or a share such as 20%"
    )
