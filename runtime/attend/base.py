"""The interface of every attend method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...models.config import LayerConfig
    from ...ops.attention import AttentionScratch
    from ..store import KVStore


@dataclass(frozen=True, slots=True)
class LayerView:
    """One layer of one context, as an attend method sees it."""

    index: int
    config: LayerConfig
    store: KVStore
    scratch: AttentionScratch


class Attend(ABC):
    """Attention of new queries over the stored tokens of a layer."""

    records: ClassVar[bool] = False
    """Whether a call for one token only runs steps, so that it can be recorded (`ops.steps`); it
    then passes `start` on to them as it came, for it is a `Cell`."""

    reads_slots: ClassVar[bool] = False
    """Whether tokens may stand in any order and be replaced, as where a keep method evicts."""

    @abstractmethod
    def __call__(
        self, layer: LayerView, q: NDArray[np.float32], start: int, out: NDArray[np.float32]
    ) -> None:
        """out[T, H, E] = attention of q[T, H, E] at positions start … start + T - 1.

        Keys and values up to position start + T - 1 are already in the layer's store.
        """
