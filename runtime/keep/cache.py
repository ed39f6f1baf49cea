"""The KV cache of a context: a value of each axis at work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Protocol

from ..attend import BoundAttend, LayerView

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...jit.launch import Graph
    from ...models.config import LayerConfig
    from ..model_info import ModelInfo
    from ..stats import Kept
    from ..store import KVStore


class CacheAttention(Protocol):
    """`models.attention.Attention` over a KV cache."""

    layers: list[LayerView]
    graphs: dict[bool, Graph] | None

    @property
    def every_query(self) -> bool: ...

    def begin(self, start: int) -> None:
        """The next calls are for tokens from position `start` on, for which there is room."""

    def __call__(
        self,
        layer: int,
        q: NDArray[np.float32],
        k: NDArray[np.float32],
        v: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None: ...


class KVCache(ABC):
    """Where K and V are (`store`), which tokens are read (`attend`), and which stay (a subclass).

    attention: what the forward pass calls.
    """

    keeps_all: ClassVar[bool]
    """Whether every token has its place, so that the context can be cut anywhere."""

    def __init__(self, store: KVStore, attend: BoundAttend, attention: CacheAttention) -> None:
        self.store, self.attend, self.attention = store, attend, attention

    @property
    def notices(self) -> Sequence[str]:
        """Lines that the user should see."""
        return self.attend.notices

    def begin(self, start: int, n_tokens: int) -> None:
        """Make ready for `n_tokens` tokens from position `start` on; later ones are forgotten."""
        self.store.cut(start)
        self.store.reserve(start + n_tokens)
        self.attention.begin(start)

    @abstractmethod
    def index(self, n_tokens: int, progress: Callable[[int, int], None] | None) -> None:
        """Build what the attend method's index lacks of the first `n_tokens` tokens."""

    @abstractmethod
    def kept(self, layer: int, n_tokens: int) -> NDArray[np.uint32]:
        """Positions that each KV head of a layer holds of `n_tokens` tokens, (J, n), unordered."""

    @property
    @abstractmethod
    def most_tokens(self) -> int:
        """Tokens that the context can read in all."""

    def kept_of(self, tokens: Sequence[int]) -> Kept | None:
        """For statistics: what is kept of `tokens`, a list that grows; None where all of it is."""
        return None

    @abstractmethod
    def places_left(self, n_tokens: int) -> int:
        """Tokens that can follow `n_tokens` without eviction."""

    @abstractmethod
    def evicted(self, n_tokens: int) -> bool:
        """Whether one of `n_tokens` tokens has been evicted from some layer."""


@contextmanager
def closed_on_error(store: KVStore) -> Iterator[None]:
    """A store that comes to nothing lets go of its files and its lock."""
    try:
        yield
    except BaseException:
        store.close()
        raise


def layer_views(
    model: ModelInfo, layers: Sequence[LayerConfig], store: KVStore, n_ctx: int, max_chunk: int
) -> list[LayerView]:
    """The layers of a context whose layers hold up to `n_ctx` tokens each."""
    from ...ops.attention import AttentionScratch

    config = model.config
    scratch = AttentionScratch(
        config.n_heads, config.n_kv_heads, store.layout, max_rows=max_chunk, n_ctx=n_ctx
    )
    return [LayerView(i, layer, store, scratch) for i, layer in enumerate(layers)]
