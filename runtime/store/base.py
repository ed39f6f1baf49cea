"""The interface of every KV store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from ...system.errors import KvarnError
from ..methods import Method

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...ops.attention.layout import TileLayout
    from ..loading.model_info import ModelInfo
    from .slots import SlotStore


class StoreError(KvarnError):
    """A KV store cannot hold what was asked of it."""


class Column(ABC):
    """Index data beside K and V: `item_bytes` for each token of each KV head, in every layer.

    Laid out as `[segment][kv_head][token]`; fresh items are zeros. Whoever owns the column writes
    its items through the addresses, right after the tokens were appended, and says so in `filled`.
    A store that persists writes a segment of a column once every layer has filled it: an owner that
    leaves layers out sets their `filled` too. Items of the last, open segment are not kept: after
    opening, `filled` is a multiple of 1,024, and what is missing is computed from K as stored.
    """

    item_bytes: int
    filled: NDArray[np.int64]
    """(layers,): the items of tokens 0 to filled[layer] - 1 have been written. Appending from an
    earlier token lowers it to there."""

    @abstractmethod
    def segments(self, layer: int) -> NDArray[np.int64]:
        """Base addresses of the layer's segments; valid until the store's next `reserve`."""


@dataclass(frozen=True)
class Saved:
    """What a store held when it was opened: tokens whose K and V are there, and what follows."""

    tokens: list[int]
    hidden: NDArray[np.float32] | None
    """Of the last token, after `output_norm`: float32 (D,); None where it is unknown."""


class KVStore(ABC):
    """K and V of all layers, in tiles of 16 tokens grouped in segments of 1,024.

    Tokens are written in order, `start` to `start + T - 1`; an earlier `start` overwrites,
    so that dropping tokens from the end needs no work here.
    """

    records: bool = False
    """Whether `append` of one token only runs steps, so that it can be recorded (`jit.launch`). The
    arrays of `segments` are then replaced, not changed, when an address changes."""
    layout: TileLayout
    n_layers: int
    n_kv_heads: int
    saved = Saved([], None)
    centre: NDArray[np.float32] | None = None
    """Float32 (layers, J, E) that whoever appends has taken off the keys, see `centre`."""

    @property
    def n_mapped(self) -> int:
        """The first so many segments lie in mapped files, which are read when they are touched."""
        return 0

    @property
    def saves(self) -> bool:
        """Whether `commit` makes tokens outlast the process."""
        return False

    def commit(  # noqa: B027 - most stores have nothing to save
        self, tokens: Sequence[int], hidden: NDArray[np.float32] | None
    ) -> None:
        """Make all of `tokens`, which every layer has, outlast the process, where the store saves.

        hidden: that of the last token, float32 (D,). `StoreError` where it cannot be written.
        """

    def close(self) -> None:  # noqa: B027 - nor to close
        """Let go of files, without another commit. Nothing is appended or read after."""

    def cut(self, n_tokens: int) -> None:  # noqa: B027 - most stores have nothing to do
        """Tokens from `n_tokens` on do not hold any more. To be called before recorded steps, which
        are no calls of `append`, write there."""

    @abstractmethod
    def reserve(self, n_tokens: int) -> None:
        """Make room for tokens 0 to n_tokens - 1; `StoreError` where there is none."""

    @abstractmethod
    def segments(self, layer: int) -> NDArray[np.int64]:
        """Base addresses of the layer's segments; valid until the next `reserve`."""

    @abstractmethod
    def append(
        self, layer: int, k: NDArray[np.float32], v: NDArray[np.float32], start: int
    ) -> None:
        """Store k, v float32[T, J, E] as tokens start … start + T - 1 of the layer."""

    @abstractmethod
    def column(self, name: str, item_bytes: int) -> Column:
        """The column of this name, made where it is missing; it grows with `reserve`.

        A store that persists keeps its columns too. `StoreError` where a column of this name holds
        items of another size.
        """

    @property
    @abstractmethod
    def n_bytes(self) -> int:
        """Bytes held now, columns included."""


@dataclass(frozen=True)
class SlotPlan:
    """What a context that evicts keeps: the method and its options, and the slots of each layer."""

    keep: str
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"at most {max(self.sizes):,} tokens (keep {self.keep})"


class Store(Method, ABC):
    """Where K and V of a context are to be kept; `open` makes the store."""

    @overload
    def open(self, model: ModelInfo, n_ctx: int) -> KVStore: ...
    @overload
    def open(self, model: ModelInfo, n_ctx: int, slots: SlotPlan) -> SlotStore: ...
    def open(self, model: ModelInfo, n_ctx: int, slots: SlotPlan | None = None) -> KVStore:
        """The store of a context of up to `n_ctx` tokens, or of what `slots` leaves of them.

        Raises `StoreError` where it cannot be had.
        """
        if slots is None:
            return self._open(model, n_ctx)
        return self._open_slots(model, n_ctx, slots)

    @abstractmethod
    def _open(self, model: ModelInfo, n_ctx: int) -> KVStore:
        """A store of all tokens."""

    @abstractmethod
    def _open_slots(self, model: ModelInfo, n_ctx: int, slots: SlotPlan) -> SlotStore:
        """A store of slots."""
