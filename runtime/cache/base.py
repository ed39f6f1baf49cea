"""What a KV cache does in each pass, whatever it keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from ...ops.arrays import U32
from ...ops.device import Array, Recorded
from ..attend import BoundAttend, LayerView
from ..methods import Progress
from ..stats import KeptTokens
from ..store import KVStore
from ..store.ram.slots import SlotCopy


class KVCache(ABC):
    """K and V of a context (`store`), what is read of them (`attend`), which stay (a subclass).

    It is the `models.attention.Attention` of the forward pass. A pass is

        begin(start, n)            drop tokens from `start` on, make room for `n`
        cache(layer, q, k, v, out) for each layer: store k and v, attend with q
        end(n)                     all layers have the tokens
    """

    keeps_all: ClassVar[bool]
    """Whether all tokens stay, so that the context can be cut anywhere."""
    every_query: bool = True
    graphs: dict[Hashable, Recorded] | None = None
    unrecorded: frozenset[int] = frozenset()

    def __init__(self, store: KVStore, attend: BoundAttend, layers: list[LayerView]) -> None:
        self.store, self.attend, self.layers = store, attend, layers
        self._start, self._prompt = 0, True
        # What to add to the rows of keys (n, J · E) of each layer before they are stored.
        self._minus_centre: Array | None = None
        if store.centre is not None:
            self._minus_centre = store.device.put(-store.centre.reshape(len(store.centre), -1))

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
        self._begin_pass(start, n_tokens, prompt)

    def _begin_pass(self, start: int, n_tokens: int, prompt: bool) -> None:
        self._start, self._prompt = start, prompt
        if self.store.states is not None:
            self.store.states.begin(start, n_tokens)

    def state(self, layer: int) -> Sequence[Array]:
        assert self.store.states is not None
        return self.store.states.of(layer)

    def __call__(self, layer: int, q: Array, k: Array | None, v: Array | None, out: Array) -> None:
        if k is None or v is None:
            self._read_again(layer, q, out)
            return
        if self._minus_centre is not None:
            rows = k.reshape(len(k), -1)
            self.store.device.pointwise.add_row(rows, self._minus_centre[self.layers[layer].index])
        self._read(layer, q, k, v, out)

    def end(self, n_tokens: int) -> None:
        """All layers have the tokens that `begin` was called for."""
        if self.store.states is not None:
            self.store.states.end(self._start + n_tokens)

    @abstractmethod
    def _read(self, layer: int, q: Array, k: Array, v: Array, out: Array) -> None:
        """Store k and v of new tokens, and attend with q; arrays as in `Attention`."""

    def _read_again(self, layer: int, q: Array, out: Array) -> None:
        """Attend with q to the tokens that the layer which this one reads has stored."""
        raise AssertionError("`opening` refuses this cache for models that need it")

    @abstractmethod
    def index(self, n_tokens: int, layers: slice, progress: Progress | None) -> None:
        """Index those of the first `n_tokens` tokens that the attend method has not indexed, in
        some of the layers; all are indexed in order."""

    @abstractmethod
    def kept_positions(self, layer: int, n_tokens: int) -> U32:
        """Positions that each KV head which a layer reads holds of `n_tokens` tokens, (J, n),
        unordered."""

    @property
    @abstractmethod
    def most_tokens(self) -> int:
        """Tokens that the context can read in all."""

    def kept_tokens(self, tokens: Sequence[int]) -> KeptTokens | None:
        """Statistics of what is kept of `tokens`, a growing list; None where everything is kept."""
        return None

    @abstractmethod
    def places_left(self, n_tokens: int) -> int:
        """Tokens that can follow `n_tokens` without eviction."""

    def copy(self) -> SlotCopy | None:
        """A copy of all K and V, for `restore`; None where a cut brings them back."""
        return None

    def restore(self, copy: SlotCopy) -> None:  # noqa: B027 - most caches give no copy
        """Restore all K and V from a `copy`."""

    def cut_refusal(self, n_tokens: int, to: int) -> str:
        """Why a context of `n_tokens` cannot be cut to the first `to`, but to 0; "" if it can."""
        return "tokens that stood there have been evicted" if self.has_evicted(n_tokens) else ""

    @abstractmethod
    def has_evicted(self, n_tokens: int) -> bool:
        """Whether one of `n_tokens` tokens has been evicted from some layer."""


@contextmanager
def close_on_error(store: KVStore) -> Iterator[None]:
    """Close the store, and so its files and lock, after an error in the block."""
    try:
        yield
    except BaseException:
        store.close()
        raise
