"""The interface of every keep method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ...system.errors import KvarnError
from ..methods import Method

if TYPE_CHECKING:
    from ..attend import Attend
    from ..loading.model_info import ModelInfo
    from ..store import Store
    from .cache import KVCache


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

    @abstractmethod
    def open(
        self, model: ModelInfo, n_ctx: int, max_chunk: int, attend: Attend, store: Store
    ) -> KVCache:
        """The KV cache of a context of `n_ctx` tokens, read at most `max_chunk` at a time.

        Raises `StoreError` if there is no room, and `KeepError` or `AttendError` if the methods
        cannot be combined.
        """
