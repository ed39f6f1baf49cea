"""The KV cache of a context, made of a store, a keep and an attend method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Protocol

from ...models.attention import Attention
from ..attend import BoundAttend, LayerView

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...models.config import LayerConfig
    from ..loading.model_info import ModelInfo
    from ..methods import Progress
    from ..stats import Kept
    from ..store import KVStore
    from ..store.slots import SlotCopy


class CacheAttention(Attention, Protocol):
    """What the forward pass calls, over a KV cache."""

    layers: list[LayerView]

    def begin(self, start: int, n_tokens: int, prompt: bool) -> None:
        """The next calls are for tokens from position `start` on, for which there is room.

        prompt: see `KVCache.begin`.
        """

    def done(self, n_tokens: int) -> None:
        """All layers have these tokens."""


class KVCache(ABC):
    """Where K and V are (`store`), which tokens are read (`attend`), and which stay (a subclass).

    attention: what the forward pass calls.
    """

    keeps_all: ClassVar[bool]
    """Whether all tokens stay, so that the context can be cut anywhere."""

    def __init__(self, store: KVStore, attend: BoundAttend, attention: CacheAttention) -> None:
        self.store, self.attend, self.attention = store, attend, attention

    @property
    def notices(self) -> Sequence[str]:
        """Lines that the user should see."""
        return self.attend.notices

    def begin(self, start: int, n_tokens: int, *, prompt: bool) -> None:
        """Prepare for `n_tokens` tokens from position `start` on; drop those stored there.

        prompt: whether they belong to a prompt, or are generated or drafted.
        """
        self.store.cut(start)
        self.store.reserve(start + n_tokens)
        self.attention.begin(start, n_tokens, prompt)

    def done(self, n_tokens: int) -> None:
        """All layers have the tokens that `begin` was called for."""
        self.attention.done(n_tokens)

    @abstractmethod
    def index(self, n_tokens: int, progress: Progress | None) -> None:
        """Index those of the first `n_tokens` tokens that the attend method has not indexed."""

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

    def copied(self) -> SlotCopy | None:
        """A copy of all that is held, for `put_back`; None where a cut brings it back."""
        return None

    def put_back(self, copy: SlotCopy) -> None:  # noqa: B027 - most caches give no copy
        """Hold again what `copied` gave."""

    def cut_refusal(self, n_tokens: int, to: int) -> str:
        """Why a context of `n_tokens` cannot be cut to the first `to`, but to 0; "" if it can."""
        return "tokens that stood there have been evicted" if self.evicted(n_tokens) else ""

    @abstractmethod
    def evicted(self, n_tokens: int) -> bool:
        """Whether one of `n_tokens` tokens has been evicted from some layer."""


def minus_centre(store: KVStore) -> NDArray[np.float32] | None:
    """What to add to the rows of keys (n, J · E) of each layer before `append`: (layers, J · E)."""
    return None if store.centre is None else -store.centre.reshape(len(store.centre), -1)


@contextmanager
def closed_on_error(store: KVStore) -> Iterator[None]:
    """Close the store, and so its files and lock, after an error in the block."""
    try:
        yield
    except BaseException:
        store.close()
        raise


def layer_views(
    model: ModelInfo, layers: Sequence[LayerConfig], store: KVStore, n_ctx: int, max_chunk: int
) -> list[LayerView]:
    """The layers of a context whose layers hold up to `n_ctx` tokens each."""
    config = model.config
    scratch = store.device.attention_scratch(
        config.n_heads, config.n_kv_heads, store.layout, max_chunk, n_ctx
    )
    return [LayerView(i, layer, store, scratch) for i, layer in enumerate(layers)]
