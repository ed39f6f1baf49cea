"""Attention of a context that evicts many tokens at once: read, score, evict, go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from ....ops.pointwise import add_row
from ..cache import minus_centre
from ..slots import Ring, SlotAttention, Slots
from .queries import BLOCK
from .slots import ScoredSlots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ....ops.device import Recorded
    from ...attend import BoundAttend, LayerView

    F32 = NDArray[np.float32]


def _nothing(_before: int, _after: int) -> None:
    pass


@dataclass
class ScoredAttention:
    """What the forward pass calls: layers with a window replace tokens one by one, as elsewhere."""

    layers: list[LayerView]
    slots: list[ScoredSlots | Ring]
    attend: BoundAttend
    start: int = 0
    prompt: bool = True
    graphs: dict[bool, Recorded] | None = None
    finished: Callable[[int, int], None] = _nothing
    """Called with the tokens read before and after a pass, when all layers have them."""
    every_query: ClassVar[bool] = True  # they decide which tokens are evicted

    def __post_init__(self) -> None:
        # It is called for the layers with rings alone.
        self._windows = SlotAttention(self.layers, cast("list[Slots]", self.slots), self.attend)
        self._minus_centre = minus_centre(self.slots[0].store)

    def begin(self, start: int, n_tokens: int, prompt: bool) -> None:
        """See `CacheAttention.begin`."""
        self.start, self.prompt = start, prompt
        self._windows.begin(start, n_tokens, prompt)

    def done(self, n_tokens: int) -> None:
        """See `CacheAttention.done`."""

    def __call__(self, layer: int, q: F32, k: F32, v: F32, out: F32) -> None:
        slots = self.slots[layer]
        if isinstance(slots, ScoredSlots):
            self._pass(slots, q, k, v, out)
        else:
            self._windows(layer, q, k, v, out)
        if layer == len(self.layers) - 1:
            self.finished(self.start, self.start + len(k))

    def _pass(self, slots: ScoredSlots, q: F32, k: F32, v: F32, out: F32) -> None:
        """Read new tokens, in pieces between which tokens are evicted."""
        if self._minus_centre is not None:
            add_row(k.reshape(len(k), -1), self._minus_centre[slots.layer])
        step = 1 if self.attend.chooses and not self.prompt else len(q)
        done = 0
        while done < len(q):
            position = self.start + done
            if slots.keep.sums_all and slots.collects and position - slots.n_summed >= BLOCK:
                slots.sum_pending(position)
            room = slots.make_room(position, self.prompt)
            n = min(step, len(q) - done)
            n = n if room is None else min(room, n)
            part = slice(done, done + n)
            slot = slots.append(k[part], v[part], position)
            log_sums = self._attend(slots, q[part], position, slot, out[part])
            if slots.collects:
                scaled = q[part] * np.float32(slots.view.config.attention_scale)
                slots.queries.put(slots.layer, position, scaled, log_sums)
            done += n

    def _attend(self, slots: ScoredSlots, q: F32, position: int, slot: int, out: F32) -> F32 | None:
        """Attention of tokens in slots from `slot` on; the log sums of a prompt's scores.

        Only generated tokens choose: what a prompt leaves is indexed before the first of them.
        """
        view = slots.view
        if not self.prompt:
            self.attend.appended(view, slot, len(q))
            self.attend.attend_slots(view, q, position, slot + len(q), out)
            return None
        if not slots.collects:
            self.attend.attend_prompt(view, q, slot, out)
            return None
        log_sums = np.empty(q.shape[:2], np.float32)
        slots.attend(q, slot, out, view.config.attention_scale, log_sums)
        return log_sums
