"""keep `all`: nothing is evicted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..memory import human_bytes
from .base import Keep
from .cache import KVCache, closed_on_error, layer_views

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..attend import Attend, BoundAttend
    from ..loading.model_info import ModelInfo
    from ..methods import Progress
    from ..store import KVStore, Store
    from .cache import CacheAttention


@dataclass(frozen=True)
class KeepAll(Keep):
    """All tokens stay; a full context takes no more."""

    name: ClassVar[str] = "all"
    summary: ClassVar[str] = "every token"
    keeps_all: ClassVar[bool] = True

    def evicts(self, n_ctx: int) -> bool:
        return False

    def open(
        self, model: ModelInfo, n_ctx: int, max_chunk: int, attend: Attend, store: Store
    ) -> KVCache:
        return open_all(model, n_ctx, max_chunk, attend, store)


def open_all(
    model: ModelInfo, n_ctx: int, max_chunk: int, attend: Attend, store: Store, notice: str = ""
) -> WholeCache:
    """The cache of a context that keeps all tokens. notice: a line that its user should see."""
    from .attention import StoredAttention

    opened = store.open(model, n_ctx)
    with closed_on_error(opened):
        views = layer_views(model, model.config.layers, opened, n_ctx, max_chunk)
        bound = attend.open(model, opened, n_ctx)
        attention = StoredAttention(views, bound, opened)
        return WholeCache(opened, bound, attention, n_ctx, notice, model.tell)


class WholeCache(KVCache):
    """Holds token p at place p of every layer."""

    keeps_all: ClassVar[bool] = True

    def __init__(
        self,
        store: KVStore,
        attend: BoundAttend,
        attention: CacheAttention,
        n_ctx: int,
        notice: str,
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(store, attend, attention)
        self._n_ctx, self._notice, self._tell, self._told = n_ctx, notice, tell, False

    @property
    def notices(self) -> Sequence[str]:
        return (self._notice, *self.attend.notices) if self._notice else self.attend.notices

    def index(self, n_tokens: int, progress: Progress | None) -> None:
        began = time.perf_counter()
        self.store.reserve(n_tokens)
        self.attend.build(self.attention.layers, n_tokens, progress)
        if (n_bytes := self.store.unsaved_index_bytes) and not self._told:
            self._told = True
            self._tell(
                f"the pack has no index for this method: made {human_bytes(n_bytes)} of it in "
                f"memory, in {time.perf_counter() - began:.1f} s; `kvarn pack index NAME` with the "
                "same --method keeps it"
            )

    def kept(self, layer: int, n_tokens: int) -> NDArray[np.uint32]:
        return np.tile(np.arange(n_tokens, dtype=np.uint32), (self.store.n_kv_heads, 1))

    @property
    def most_tokens(self) -> int:
        return self._n_ctx

    def places_left(self, n_tokens: int) -> int:
        return self._n_ctx - n_tokens

    def evicted(self, n_tokens: int) -> bool:
        return False
