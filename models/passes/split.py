"""Passes of one context that are recorded in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from ...ops.device import Array
from ..attention import Attention
from ..workspace import Rows

if TYPE_CHECKING:
    from .transformer import Transformer


class SplitPass:
    """A pass whose mixing is called in some layers (`Attention.unrecorded`), and recorded between
    them."""

    def __init__(
        self, model: Transformer, b: Rows, angles: list[Array], attention: Attention
    ) -> None:
        self._model, self._b, self._attention = model, b, ref(attention)
        layers = [i for i, layer in enumerate(model.config.layers) if layer.attention is not None]
        self._called = [layers[number] for number in sorted(attention.unrecorded)]
        starts = 0, *(index + 1 for index in self._called)
        self._graphs = [
            model.device.record(model.run_layers, first, stop, b, angles, attention)
            for first, stop in zip(starts, (*self._called, model.config.n_layers), strict=True)
        ]

    def run(self) -> None:
        """See `Recorded`."""
        attention, (first, *others) = self._attention(), self._graphs
        assert attention is not None
        first.run()
        for index, graph in zip(self._called, others):
            self._model.mix(index, self._b, attention)
            graph.run()
