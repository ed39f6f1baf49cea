"""The interface of every keep method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ...system.errors import KvarnError
from ..methods import Method

if TYPE_CHECKING:
    from ..attend import Attend
    from ..model_info import ModelInfo
    from ..store import Store
    from .cache import KVCache


class KeepError(KvarnError):
    """A keep method cannot work with what it was given."""


class Keep(Method, ABC):
    """Decides which tokens of a context stay in its store."""

    keeps_all: ClassVar[bool] = False
    """Whether no token ever goes, however long the context is."""

    @abstractmethod
    def evicts(self, n_ctx: int) -> bool:
        """Whether a context of `n_ctx` tokens evicts, and so reads on beyond them.

        Raises `KeepError` where the options do not fit a context of that size.
        """

    @abstractmethod
    def open(
        self, model: ModelInfo, n_ctx: int, max_chunk: int, attend: Attend, store: Store
    ) -> KVCache:
        """The KV cache of a context of `n_ctx` tokens, read at most `max_chunk` at a time.

        Raises `StoreError` where there is no room, and `KeepError` and `AttendError` for choices
        that do not go together.
        """
