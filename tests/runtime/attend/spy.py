"""A method that keeps what another one was asked and what it said."""

from typing import NamedTuple

import numpy as np

from kvarn.runtime.attend import Attend, BoundAttend, LayerView


class Step(NamedTuple):
    """What a layer was asked after `stop` tokens, and what it said."""

    layer: LayerView
    q: np.ndarray
    stop: int
    out: np.ndarray


class Spy(Attend, BoundAttend):
    """Another method; keeps the last step of each layer."""

    def __init__(self, method: Attend) -> None:
        self.method, self.calls = method, {}

    def open(self, model, store, n_ctx):
        self.inner = self.method.open(model, store, n_ctx)
        return self

    def appended(self, layer, start, n_tokens) -> None:
        self.inner.appended(layer, start, n_tokens)

    def attend_prompt(self, layer, q, start, out) -> None:
        self.inner.attend_prompt(layer, q, start, out)

    def __call__(self, layer, q, start, out) -> None:
        self.inner(layer, q, start, out)
        self.calls[layer.number] = Step(layer, q.copy(), start + 1, out.copy())
