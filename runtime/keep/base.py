"""The interface of every keep method, and `all`, which evicts nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ...system.errors import KvarnError
from ..methods import Method


class KeepError(KvarnError):
    """A keep method cannot work with what it was given."""


class Keep(Method, ABC):
    """A keep method and its options: it decides which tokens of a context stay in the store."""

    keeps_all: ClassVar[bool] = False
    """Whether all tokens stay, whatever the length of the context."""

    @abstractmethod
    def evicts(self, n_ctx: int) -> bool:
        """Whether a context of `n_ctx` tokens evicts, and so reads on beyond them.

        Raises `KeepError` if the options do not fit a context of that size.
        """

    def shortened(self, n_slots: int) -> Keep:
        """The method as it is rehearsed, with a budget of `n_slots`."""
        return self


@dataclass(frozen=True)
class KeepAll(Keep):
    """All tokens stay; a full context takes no more."""

    name: ClassVar[str] = "all"
    summary: ClassVar[str] = "every token"
    keeps_all: ClassVar[bool] = True

    def evicts(self, n_ctx: int) -> bool:
        return False
