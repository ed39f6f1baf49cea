"""The head's attention to all tokens: it asks all shards, reads what it holds itself meanwhile, and
merges (`ops.attention.merging`).
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from ....ops.arrays import F32, F64
from ....ops.attention.merging import NO_SINKS, MergeScratch, merge_parts
from ....ops.attention.softmax import Softmax
from ....ops.device import Recorded
from ...attend.base import BoundAttend, LayerView
from ...attend.full import FullAttention
from ..errors import ShardError
from ..frames import MOST_ROWS, Kind, Message, QuestionTemplate, Shape
from ..links import Links
from ..part import Output
from .local import LocalPart

_F32 = np.dtype(np.float32)


def shapes_of(shape: tuple[int, ...]) -> tuple[Shape, Shape]:
    """Types and shapes of an output for queries of this shape."""
    return (_F32, shape), (_F32, (*shape[:2], 2))


class Outputs:
    """The output and masses of each of n_parts processes for queries (T, H, E), this one's first.

    Merging those of a single token is recorded.
    """

    def __init__(self, n_parts: int, shape: tuple[int, ...]) -> None:
        outs, masses = np.empty((n_parts, *shape), np.float32), (n_parts, *shape[:2], 2)
        self._outs, self._masses = outs, np.empty(masses, np.float32)
        self._out: F32 = np.empty(shape, np.float32)
        self._scratch = MergeScratch(n_parts, *shape[:2])
        self._parts = [
            (out.data.cast("B"), masses.data.cast("B"))
            for out, masses in zip(self._outs, self._masses)
        ]
        self._recorded: dict[int, Recorded] = {}

    def set_local(self, output: Output) -> None:
        """Set those of this process."""
        self._outs[0], self._masses[0] = output

    def set(self, part: int, data: memoryview) -> None:
        """Set those of a shard, which an answer begins with."""
        out, masses = self._parts[part]
        n = len(out)
        out[:], masses[:] = data[:n], data[n : n + len(masses)]

    def merge(self, layer: LayerView, out: F32) -> None:
        """out (T, H, E): attention to the tokens of all, and to the sinks of the layer."""
        if len(out) > 1:
            self._merge(layer)
        else:
            if layer.number not in self._recorded:
                self._recorded[layer.number] = layer.device.record(self._merge, layer)
            self._recorded[layer.number].run()
        out[:] = self._out

    def _merge(self, layer: LayerView) -> None:
        sinks = NO_SINKS if layer.softmax.sinks is None else layer.softmax.sinks
        merge_parts(self._outs, self._masses, self._out, sinks=sinks, scratch=self._scratch)


class ShardedFull(BoundAttend):
    """`full` in one context: layers with a window, and the tokens after those of the shards, are
    read here.

    called: the layers without a window; of a generated token, the others are recorded.
    """

    records = True

    def __init__(self, links: Links, local: LocalPart, unrecorded: frozenset[int]) -> None:
        self._links, self._local, self.unrecorded = links, local, unrecorded
        self._full = FullAttention()
        self._scorings: dict[int, tuple[Softmax, F64]] = {}
        self._templates: dict[int, QuestionTemplate] = {}
        self._of_one: Outputs | None = None

    def scoring(self, layer: LayerView) -> tuple[Softmax, F64]:
        """How the layer's scores become weights, without sinks, which are counted once; and the
        same for a shard."""
        if layer.number not in self._scorings:
            softmax = layer.softmax._replace(sinks=None)
            numbers = np.array([layer.index, softmax.scale, softmax.softcap], np.float64)
            self._scorings[layer.number] = softmax, numbers
        return self._scorings[layer.number]

    def outputs(self, q: F32) -> Outputs:
        """Memory for the outputs of all processes for queries (T, H, E), those of one token the
        same at each call."""
        if len(q) > 1:
            return Outputs(1 + len(self._links), q.shape)
        if self._of_one is None:
            self._of_one = Outputs(1 + len(self._links), q.shape)
        return self._of_one

    def expect(self, start: int, n_tokens: int, prompt: bool) -> Hashable | None:
        return None if prompt or n_tokens != 1 else ()

    def __call__(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        if layer.config.window is not None:
            self._full(layer, q, start, out)
            return
        self.check(int(start))
        for i in range(0, len(q), MOST_ROWS):
            rows = slice(i, i + MOST_ROWS)
            self._attend(layer, q[rows], int(start) + i, out[rows])

    def check(self, start: int) -> None:
        """Raise `ShardError` for a context that was cut into the tokens of its shards."""
        for link in self._links:
            if link.facts.stop > start:
                raise ShardError(
                    link.address,
                    f"it holds tokens up to {link.facts.stop:,}, and the context was cut to "
                    f"{start:,}: ask shards of fewer segments",
                )

    def _question(self, layer: LayerView, q: F32) -> Message:
        _, numbers = self.scoring(layer)
        if len(q) > 1:
            return Message.of(Kind.ROWS, [numbers, q])
        template = self._templates.get(layer.number)
        if template is None:
            template = self._templates[layer.number] = QuestionTemplate(Kind.ROWS, [numbers, q])
        template.fill(1, q)
        return template.message()

    def _attend(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        softmax, _ = self.scoring(layer)
        question = self._question(layer, q)
        outputs, shapes = self.outputs(q), shapes_of(q.shape)
        with self._links.exchange():
            for link in self._links:
                link.ask(question)
            outputs.set_local(self._attend_locally(layer, q, start, softmax))
            for part, link in enumerate(self._links, 1):
                outputs.set(part, link.answer(*shapes).view)
        outputs.merge(layer, out)

    def _attend_locally(self, layer: LayerView, q: F32, start: int, softmax: Softmax) -> Output:
        """Attention to the tokens of this process, those from `start` on masked."""
        if len(q) == 1:
            whole = self._local.attend_all(layer.index, q, start + 1, softmax)
            return whole.out, whole.masses
        from ....ops.attention.api import attention_rows

        part = self._local.part
        out, masses = np.empty_like(q), np.ones((*q.shape[:2], 2), np.float32)
        log_sums = np.empty(q.shape[:2], np.float32)
        attention_rows(
            q, part.segments(layer.index), start - part.first, out,
            softmax=softmax, log_sums=log_sums, scratch=layer.scratch,
        )  # fmt: skip
        masses[..., 0] = log_sums
        return out, masses
