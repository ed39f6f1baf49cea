"""The layers in which a sparse method chooses: from which tokens, and how many.

Layers are numbered as `LayerView.number` does: one that reads the keys and values of another
chooses for itself among them, by the index of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ....models.config import ModelConfig
from ....ops.device import Device
from ....ops.select import Range, Wanted
from .index import Choice, TokenIndex

if TYPE_CHECKING:
    from .method import Sparse


class ChoosingLayers:
    """The choosing layers of one context of n_ctx tokens.

    dense: layers that read every token although they could choose.
    """

    def __init__(
        self, method: Sparse, dense: frozenset[int], config: ModelConfig, n_ctx: int
    ) -> None:
        # Of the model's layers: over slots, those with a window look like the others.
        self.indexed = {i for i, layer in enumerate(config.kv_layers) if layer.window is None}
        """Those without a sliding window, by their keys and values (`LayerView.index`). Dense ones
        are among them: they may choose next time."""
        whole = [n for n, index in enumerate(config.kv_numbers) if index in self.indexed]
        self.choosing = [n for n in whole if n not in dense]
        self._method, self._group = method, config.n_heads // config.n_kv_heads
        self._shares = dict(zip(self.choosing, method.shares(len(self.choosing))))
        self.most = max((self.takes(layer, n_ctx) for layer in self.choosing), default=1)
        """The most tokens that a query head takes."""
        self.room = min(n_ctx, method.sink + method.window + self.most * self._group)
        """The most tokens that a KV head reads."""
        self.alike: dict[float, list[int]] = {}
        """The layers that choose alike, by their share (`Sparse.shares`)."""
        for layer, share in self._shares.items():
            self.alike.setdefault(share, []).append(layer)

    def takes(self, layer: int, stored: int) -> int:
        """How many of `stored` tokens a query head takes in a layer that chooses."""
        return self._method.max_chosen(stored, self._group, self._shares[layer])

    def among(self, layer: int, stored: int) -> Range | None:
        """The tokens that the last of `stored` chooses from; None where it reads all."""
        method, share = self._method, self._shares.get(layer)
        if share is None or method.reads_all(stored, self._group, share):
            return None
        return Range(method.sink, stored - method.window, stored)


class RecordedChoices:
    """The choices of a recorded token, as numbers that launches read when they run, and what it has
    read by layer. Layers that choose alike share theirs.

    counts: tokens that each KV head has read, (layers, J); times: nanoseconds at which a layer
    began, had chosen and had read.
    """

    _SPAN, _SIZE = 4, 8
    """Numbers of a span and of a choice, rounded up: on a GPU each begins on 16 bytes."""

    def __init__(self, layers: ChoosingLayers, config: ModelConfig, device: Device) -> None:
        n_layers = len(config.attention_layers)
        self.counts = device.zeros((n_layers, config.n_kv_heads), device.list_types[1])
        self.times = np.zeros((n_layers, 3), np.int64)
        self._layers, self._alike = layers, list(layers.alike.values())
        self._group_of = {layer: n for n, alike in enumerate(self._alike) for layer in alike}
        self._numbers = device.numbers(self._SPAN + self._SIZE * len(self._alike))
        self._choices: list[Choice | None] = [None] * len(self._alike)
        self.stored = 0
        """How many tokens are stored, with the recorded one."""

    def set(self, start: int, index: TokenIndex | None) -> tuple[bool, ...]:
        """Set the numbers for the token at `start`; index: None if it reads all tokens.

        Returns which groups of layers choose.
        """
        self.stored = stored = start + 1
        values = [start, stored, 0, 0]
        for n, (layer, *_) in enumerate(self._alike):
            reads_all = index is None or stored < index.least
            among = None if reads_all else self._layers.among(layer, stored)
            if among is None or index is None:
                self._choices[n] = None
                values += [0] * self._SIZE
            else:
                wanted = index.wanted(among, self._layers.takes(layer, stored))
                self._choices[n] = Choice(among, wanted)
                values += (*among, *wanted, 0, 0)
        self._numbers.set(values)
        return tuple([choice is not None for choice in self._choices])

    def span(self) -> list[int]:
        """The token's position and the next one, as launches find them."""
        return self._numbers.now()[:2]

    def of_layer(self, layer: int) -> Choice | None:
        """The choice of a layer, as launches find it; None if the layer reads every token."""
        group = self._group_of.get(layer)
        if group is None or self._choices[group] is None:
            return None
        first = self._SPAN + self._SIZE * group
        numbers = self._numbers.now()[first : first + self._SIZE]
        return Choice(Range(*numbers[:3]), Wanted(*numbers[3:6]))

    def ranges(self) -> dict[int, Range]:
        """The tokens that each choosing layer chooses from, by layer."""
        groups = zip(self._alike, self._choices, strict=True)
        return {i: choice.among for alike, choice in groups if choice for i in alike}
