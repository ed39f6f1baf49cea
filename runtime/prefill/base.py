"""The interface of every prefill method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ...system.errors import KvarnError
from ...system.spelling import spelt
from ..methods import Method

if TYPE_CHECKING:
    from ..attend import Attend
    from ..keep import Keep
    from ..loading.model_info import ModelInfo
    from ..store.facts import PrefillFacts

CHUNK = 512
"""Tokens of one prefill step. Chunks start at multiples of it, so that results do not depend on how
a prompt was split into calls."""


class PrefillError(KvarnError):
    """A prompt cannot be read as the options say."""


class Prefill(Method, ABC):
    """A prefill method and its options."""

    needs_all_tokens: ClassVar[bool] = False
    """Whether every token must stay in the store."""

    @property
    def host_only(self) -> str:
        """See `Attend.host_only`."""
        return f"{spelt('prefill')} {self.name}"

    def check(self, attend: Attend, keep: Keep, n_ctx: int) -> None:
        """Raise `PrefillError` if it cannot be combined with `attend`, or `keep` evicts tokens that
        it needs, in a context of that size."""
        if attend.exact_prompts and not self.is_exact_within(n_ctx):
            raise PrefillError(
                f"{spelt('prefill')} {self.name} cannot be combined with {spelt('shards')}: use "
                f"{spelt('prefill')} exact"
            )
        if self.needs_all_tokens and keep.evicts(n_ctx):
            raise PrefillError(
                f"{spelt('prefill')} {self.name} may read any token before, and {spelt('keep')} "
                f"{keep.name} evicts some: use {spelt('keep')} all or {spelt('prefill')} exact"
            )

    def shortened(self) -> Prefill:
        """The method as it is rehearsed, in a context of a thousand tokens."""
        return self

    def resolved(self, model: ModelInfo) -> Prefill:
        """The method with the defaults for this model; `PrefillError` if it cannot serve it."""
        return self

    def is_exact_within(self, n_tokens: int) -> bool:
        """Whether a context of so many tokens is read exactly."""
        return False

    def for_prompt(self, n_tokens: int) -> Prefill:
        """The method for a prompt of so many tokens, which is read in parts."""
        return self

    def following(self) -> Prefill:
        """The method for prompts that follow a pack, where a user asks for this one."""
        return self

    @abstractmethod
    def facts(self, model: ModelInfo) -> PrefillFacts | None:
        """The facts that a pack records; None for exact reading."""

    @abstractmethod
    def wrap(self, attend: Attend) -> Attend:
        """The attend method that reads prompts in this way, and other tokens as `attend` does."""
