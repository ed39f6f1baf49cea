"""The interface of every attend method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from ...models.config.layers import AttentionConfig
from ...ops.arrays import F32, I32, I64, U32
from ...ops.attention.softmax import Softmax
from ...ops.device import Device, Scratch
from ...system.errors import KvarnError
from ...system.spelling import spelt
from ..loading.model_info import ModelInfo
from ..methods import Method, Progress
from ..store import KVStore
from .reads import LayerReads


class AttendError(KvarnError):
    """An attend method cannot work with the options or the files it was given."""


@dataclass(frozen=True, slots=True)
class LayerView:
    """One layer of one context, as an attend method sees it."""

    index: int
    """Of the keys and values that it reads, among those of the store."""
    number: int
    """Among the layers with attention: it differs where layers read those of others."""
    config: AttentionConfig
    store: KVStore
    scratch: Scratch
    """For `device.attention`."""
    softmax: Softmax

    @property
    def device(self) -> Device:
        """What has the layer's keys and values, and computes with them."""
        return self.store.device


class Attend(Method, ABC):
    """An attend method and its options; `open` makes the object that attends in one context."""

    selects: ClassVar[bool] = False
    """Whether it chooses the tokens that a step reads, so that choices can be written to a file
    (`selections`)."""

    exact_prompts: ClassVar[bool] = False
    """Whether prompts can be read exactly only."""

    @property
    def needs_all_tokens(self) -> bool:
        """Whether every token must stay in the store, in order. Keep methods that evict refuse such
        a method."""
        return True

    @property
    def host_only(self) -> str:
        """The option for which K and V must be in the host's memory, such as "--tail means"; "" if
        they can be in a GPU's."""
        return f"{spelt('method')} {self.name}"

    def shortened(self) -> Attend:
        """The method as it is rehearsed, in a context of a thousand tokens."""
        return self

    @abstractmethod
    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> BoundAttend:
        """The method over one context's store, for up to n_ctx tokens.

        Raises `AttendError` if the method cannot serve this model.
        """


class ChoiceObserver(Protocol):
    """Receives the tokens that a method chooses, as `SelectionWriter` does."""

    def add(self, layer: int, stored: int, lists: U32, counts: I64, /) -> None:
        """After `stored` tokens, KV head j attends to the positions lists[j, : counts[j]]."""


class BoundAttend(ABC):
    """Attention of new queries over the stored tokens of one context."""

    notices: Sequence[str] = ()
    """Lines that the user should see, once per context."""
    reads: Sequence[LayerReads] = ()
    """What each layer has read so far, if the method chooses tokens."""
    prompt_reads: Sequence[LayerReads] = ()
    """What each layer has read of prompts, if their tokens choose, too."""
    observer: ChoiceObserver | None = None
    """Is told of the tokens that a method with `selects` chooses; None: nobody is, which costs
    nothing. Calls are not recorded in graphs meanwhile."""

    records: bool = False
    """Whether a call for one token only launches kernels, so that it can be recorded in a graph
    (`Device.record`). It must pass `start` to them unchanged, because that is one of `Numbers`."""

    unrecorded: frozenset[int] = frozenset()
    """Layers (`LayerView.number`) whose calls are more than that, where `records` is true: they are
    called, and those of the others recorded."""

    records_prompts: bool = True
    """Whether a prompt of one token launches the same, where `records` is true."""

    every_query: bool = False
    """Whether it needs the queries of all tokens, even if only some outputs are wanted."""

    chooses: ClassVar[bool] = False
    """Whether each generated token chooses what it reads: `attend_slots` then takes one token."""

    def expect(self, start: int, n_tokens: int, prompt: bool) -> Hashable | None:
        """Prepare for a pass over the tokens from position `start` on. Returns a key of the state
        that recorded calls depend on, beside `Numbers` and the store's places: calls are recorded
        anew when it changes. None: this pass cannot be recorded."""
        return ()

    def begin_prompt(self, n_tokens: int) -> None:  # noqa: B027
        """The context begins with a prompt of so many tokens, or goes on as if it had."""

    def n_reusable(self, n_shared: int, n_tokens: int) -> int:
        """How many of the first `n_shared` tokens, all of a prompt, were read as they are at the
        beginning of a prompt of `n_tokens`."""
        return n_shared

    def end(self, n_tokens: int) -> None:  # noqa: B027
        """The pass that `expect` prepared has ended, in all layers."""

    def appended(self, layer: LayerView, start: int, n_tokens: int) -> None:  # noqa: B027
        """Index tokens start … start + n_tokens - 1, which have just been appended to the layer's
        store, or written into the slots of these numbers."""

    def replaced(  # noqa: B027 - most methods have no index
        self, layer: LayerView, slots: I32, n_tokens: int, stored: int
    ) -> None:
        """Index the tokens that have just taken the slots slots[:, :n_tokens], int32 (J, …), of the
        first `stored` of a `SlotStore`. Each KV head has slots of its own; some may occur more than
        once."""

    def build(  # noqa: B027 - most methods have no index
        self, layers: list[LayerView], n_tokens: int, progress: Progress | None = None
    ) -> None:
        """Index those of the first n_tokens tokens of every layer that are not indexed yet.

        progress is called with (layers done, layers in all).
        """

    def rehearse(self, layers: list[LayerView]) -> None:  # noqa: B027
        """See `Context.rehearse`."""

    @abstractmethod
    def __call__(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        """out[T, H, E] = attention of q[T, H, E] at positions start … start + T - 1.

        Keys and values up to position start + T - 1 are already in the layer's store. The tokens
        are generated, or proposed by a draft.
        """

    def attend_slots(self, layer: LayerView, q: F32, position: int, stored: int, out: F32) -> None:
        """The same for tokens from `position` on, over the first `stored` slots of a `SlotStore`,
        which hold them and others in no order."""
        self(layer, q, stored - len(q), out)

    def attend_prompt(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        """The same for tokens of a prompt, even a single one."""
        self(layer, q, start, out)
