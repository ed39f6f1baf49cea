"""The interface of every KV store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...ops.arrays import F32, I64
from ...ops.attention.layout import TileLayout, n_segments
from ...ops.cpu import CPU
from ...ops.device import Device, Places
from ...system.errors import KvarnError
from ..memory import available_bytes
from .facts import ProbeSums
from .states import States

Allow = Callable[[int], None]
"""Called with the most bytes by which a save makes files grow; raises `StoreError` if they must
not."""


class StoreError(KvarnError):
    """A KV store cannot hold what was asked of it."""


def types_text(k: str, v: str) -> str:
    """The types of K and V as `--kv-type` has them: q8_0, or q8_0/q4_0."""
    return k if k == v else f"{k}/{v}"


class Column(ABC):
    """Index data beside K and V: `item_bytes` for each token of each KV head, in every layer.

    Laid out as `[segment][kv_head][token]`; fresh items are zeros. The owner of the column writes
    items by operations of the store's device, right after tokens were appended, and updates
    `filled`. A store on disk writes a segment of a column once all layers have filled it, so an
    owner sets `filled` of layers that it does not index, too. Items of the open segment are not
    saved: after opening, `filled` is a multiple of 1,024, and the owner computes the rest from K as
    stored.
    """

    item_bytes: int
    filled: I64
    """(layers,): the items of tokens 0 to filled[layer] - 1 have been written. Appending an earlier
    token lowers it to that token."""

    @abstractmethod
    def segments(self, layer: int) -> Places:
        """Where the layer's segments are, for operations of the store's device; valid until the
        store's next `reserve`."""

    def restart(self, first: int = 0) -> None:
        """Forget the items of tokens from `first` on, a multiple of 1,024, of all layers, those
        that were saved too."""
        np.minimum(self.filled, first, out=self.filled)

    def check_items(self, name: str, item_bytes: int) -> None:
        """`StoreError` if its items, of the column `name`, have another size."""
        if self.item_bytes != item_bytes:
            raise StoreError(
                f"index {name} holds {self.item_bytes} bytes per token, expected {item_bytes}"
            )


@dataclass(frozen=True)
class Saved:
    """What a store held when it was opened: K and V of these tokens."""

    tokens: Sequence[int]
    hidden: F32 | None
    """Hidden state of the last token, after `output_norm`: float32 (D,); None: unknown."""
    n_prompt: int = 0
    """How many tokens, from the first on, are known to have been read as a prompt."""
    n_apart: int | None = None
    """See `KVStore`."""


class KVStore(ABC):
    """K and V of all layers, in tiles of 16 tokens grouped in segments of 1,024.

    Tokens are written in order, `start` to `start + T - 1`. An earlier `start` overwrites, so
    dropping tokens from the end needs no call.
    """

    records: bool = False
    """Whether `append` of one token only launches kernels, so that it can be recorded in a graph
    (`Device.record`). If a place changes, those that `segments` gives are then new objects."""
    device: Device = CPU
    """What has K, V and columns in its memory, and reads them."""
    layout: TileLayout
    n_layers: int
    n_kv_heads: int
    """Of layers without a window, as `layout`; see `layout_of`."""
    windowed_layers: Sequence[int] = ()
    """Those of which it holds only the newest tokens, because their window reaches no further."""
    saved = Saved([], None)
    copied_bytes: int = 0
    """Bytes of columns that were copied from files to memory, because there was room."""
    n_apart: int | None = None
    """Where prompts are read in blocks: how many tokens, from the first on, belong to blocks that
    are read apart; None: no prompt has said it yet. A commit saves it."""
    states: States | None = None
    """What layers carry besides K and V; None where they carry nothing."""
    centre: F32 | None = None
    """Mean keys, float32 (layers, J, E), which callers of `append` subtract first: see `centre`."""

    @property
    def n_mapped(self) -> int:
        """How many segments, from the first on, are mapped files, read when they are touched."""
        return 0

    @property
    def tells_pages(self) -> bool:
        """Whether the system tells which pages of those files are in memory."""
        return False

    @property
    def saves(self) -> bool:
        """Whether `commit` makes tokens outlast the process."""
        return False

    def commit(  # noqa: B027 - not all save
        self, tokens: Sequence[int], hidden: F32 | None, n_prompt: int = 0
    ) -> None:
        """Save `tokens`, which every layer has, if the store saves; `StoreError` if that fails.

        hidden: hidden state of the last token, float32 (D,). n_prompt: see `Saved`.
        """

    def limit_saves(self, allow: Allow) -> None:  # noqa: B027 - nor files that grow
        """Call `allow` before each save; an error that it raises prevents the save."""

    @property
    def written_bytes(self) -> int:
        """Bytes that saves have written to files."""
        return 0

    def add_probes(self, measured: Mapping[int, ProbeSums]) -> None:  # noqa: B027 - nor what to keep
        """Add, by layer, what was measured of the last tokens to what the next commit saves."""

    def close(self) -> None:  # noqa: B027 - nor to close
        """Close files, without another commit. Nothing is appended or read after that."""

    def check_saved(self) -> None:  # noqa: B027 - nor to check
        """`StoreError` that names what is wrong with what was saved, all of which is read."""

    def cut(self, n_tokens: int) -> None:
        """Drop the tokens from `n_tokens` on. Called before recorded launches overwrite them, which
        do not call `append`. The store must reach `n_tokens`: see `go_back`."""
        if self.states is not None:
            self.states.cut(n_tokens)

    def reaches(self, n_tokens: int) -> bool:
        """Whether `go_back` to `n_tokens` tokens has nothing to do."""
        return self.states is None or self.states.reaches(n_tokens)

    def go_back(self, n_tokens: int) -> int:
        """Make it possible to go on after the first `n_tokens` tokens; returns after how many.

        Fewer where a layer with a window does not hold any more what stands before them, see
        `windowed`, or one with a state has no checkpoint there, see `states`: the caller then reads
        the tokens between again."""
        return n_tokens if self.states is None else self.states.go_back(n_tokens)

    def pin(self, n_tokens: int) -> None:
        """Be able to go back to just `n_tokens`, those held now, until it is cut below them."""
        if self.states is not None:
            self.states.pin(n_tokens)

    def end_text(self, n_tokens: int) -> None:
        """A prompt, a document or a message ends after `n_tokens`, those held now: be able to go
        back to just there, where that costs little."""
        if self.states is not None:
            self.states.pin(n_tokens)

    def first(self, layer: int) -> int:
        """The first token that the layer holds."""
        return 0

    def layout_of(self, layer: int) -> TileLayout:
        """How K and V of the layer are stored."""
        return self.layout

    def kv_heads_of(self, layer: int) -> int:
        """KV heads of the layer."""
        return self.n_kv_heads

    @abstractmethod
    def reserve(self, n_tokens: int) -> None:
        """Make room for tokens 0 to n_tokens - 1; `StoreError` if there is none."""

    @abstractmethod
    def segments(self, layer: int) -> Places:
        """Where the layer's segments are, for operations of `device`; valid until the next
        `reserve`. Those before the layer's `first` token are nowhere."""

    @abstractmethod
    def append(self, layer: int, k: F32, v: F32, start: int) -> None:
        """Store k, v float32[T, J, E] as tokens start … start + T - 1 of the layer."""

    @abstractmethod
    def column(self, name: str, item_bytes: int) -> Column:
        """The column of this name, made if it is missing; it grows with `reserve`.

        A store that saves also saves columns. `StoreError` if the column has items of another size.
        """

    @abstractmethod
    def drop_column(self, name: str) -> None:
        """Free the memory of a column, if there is one; what was saved of it stays saved."""

    def reserve_columns(self, item_bytes: int, n: int) -> None:  # noqa: B027 - most stores grow
        """Reserve memory for `n` columns of such items, which are made later."""

    @property
    def unsaved_index_bytes(self) -> int:
        """Bytes of columns that saved tokens lack in the pack, and that have been made in memory
        because the pack is only read."""
        return 0

    def saved_items(self, name: str) -> int:
        """How many tokens, from the first on, have saved items in the column of this name."""
        return 0

    def growth(self, n_held: int, n_tokens: int) -> int:
        """Bytes that a store of `n_held` tokens grows by up to `n_tokens`."""
        n_bytes = self.n_bytes
        return n_bytes // n_segments(n_held) * n_segments(n_tokens) - n_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that a column could take: of memory, or of the disk it is saved on."""
        return available_bytes()

    @property
    @abstractmethod
    def n_bytes(self) -> int:
        """Bytes held now, columns included."""


@dataclass(frozen=True)
class SlotPlan:
    """How a context evicts: the keep method and its options, and the slots of each layer.

    whole: layers that hold a prompt whole, beyond their slots, until it is known what stays of it.
    """

    keep: str
    sizes: tuple[int, ...]
    whole: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"at most {max(self.sizes):,} tokens (keep {self.keep})"
