"""The forward pass of every architecture: token ids in, hidden states and logits out.

Embedding → layers (`layer.py`), each a mixer and a feed-forward → norm → output matrix. From the
last layer on that stores something of each token, what other tokens do not need is computed only
for tokens whose hidden states are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...ops.arrays import I32
from ...ops.device import Array, Recorded
from ..attention import Attention
from ..config import ModelConfig
from ..errors import ModelError
from ..layer import Layer
from ..per_layer import PerLayerInputs
from ..rope import Rotations
from ..weights import Weights
from ..widths import widths_of
from ..workspace import Rows, Watcher, Workspace
from .pauses import Pauses
from .split import SplitPass


class Transformer:
    """One model's forward pass, on the device of its weights, in memory that is allocated once.

    Not reentrant: one engine thread runs it. A call takes at most `max_chunk` tokens. alone: see
    `Device.activations`. pauses: where prompts let others compute, in memory of their own.
    """

    FEW: ClassVar[int] = 32
    """Generated tokens of a context that one pass reads at most, see `for_few`."""

    def __init__(
        self, config: ModelConfig, weights: Weights, max_chunk: int = 512, *, alone: bool = False
    ) -> None:
        if max_chunk < 1:
            raise ModelError(
                f"cannot build the model: max_chunk is {max_chunk}, expected 1 or more"
            )
        self.config = config
        self.weights = weights
        self.max_chunk, self._alone = max_chunk, alone
        self.device = device = weights.device
        self._work = Workspace(config, device, max_chunk, widths_of(config), alone=alone)
        self._watchers = self._work.watchers
        self.pauses = Pauses()
        self._normed_in = self._work.input("normed")
        self._rotations = Rotations(config, weights, max_chunk, device)
        self._layers = [
            Layer(index, weights, rotation, config, self._work)
            for index, rotation in enumerate(self._rotations.of_layer)
        ]
        self._ones = None
        if config.architecture.embedding_norm:
            self._ones = device.put(np.ones(config.n_embd, np.float32))
        self._per_layer = None
        if weights.per_layer is not None:
            self._per_layer = PerLayerInputs(weights.per_layer, config, self._work)
        self._graphs: dict[tuple[bool, int], list[Recorded]] = {}
        self._next_logits = device.memory((1, config.n_vocab), np.float32)
        self._logits_graph: Recorded | None = None

    @cached_property
    def for_few(self) -> Transformer:
        """What reads 2 to `FEW` generated tokens in one pass and gives each the bits that it has
        alone. It has memory of its own and the same weights. Where the device has no such products,
        it is this object."""
        if self.device.least_rows == 1:
            return self
        return Transformer(self.config, self.weights, self.FEW, alone=True)

    def forward(
        self,
        ids: I32,
        start: int,
        attention: Attention,
        n_ctx: int | None = None,
        n_out: int | None = None,
        *,
        prompt: bool = False,
    ) -> Array:
        """Hidden states after `output_norm` of the last `n_out` (default: all) of the tokens `ids`
        (T,) at positions start….

        `attention` must hold the keys and values of positions 0 … start - 1. `n_ctx` is the size of
        the context (default: the training length): longrope models have one set of frequencies
        for contexts up to their original length and another beyond. Returns the device's float32
        (n_out, n_embd), which the next call overwrites. Their bits do not depend on `n_out`. Those
        of a `prompt` do not depend on its split into calls either: a pass computes at least
        `Device.least_rows` rows. Raises `ModelError` for ids outside the vocabulary, more than
        `max_chunk` ids, or an `n_out` that is not 1 to T.
        """
        n = len(ids)
        n_out = n if n_out is None else n_out
        self._check(ids, start, n_out)
        config, device = self.config, self.device
        least = device.least_rows if prompt and not self._watchers else 1
        n_rows = max(n, min(least, self.max_chunk))
        b = self._work.rows(0, n_rows, n)
        device.put(ids, b.ids[:n])
        if self._per_layer is not None:
            self._per_layer.put(ids, n_rows)
        if config.temperature_scale:
            device.put(self._temperatures(start, n_rows), b.array("temperature"))
        long = (n_ctx or config.n_ctx_train) > config.n_ctx_orig
        angles = self._rotations.angles(start, n_rows, long)
        if n_rows > n:
            self._run(b, b, self._work.rows(0, n), angles, attention, self.pauses)
            return b.normed[n - n_out : n]
        if self._watchers or (n > 1 and not self._alone):
            every = attention.every_query or self._watchers
            n_wanted = n if every else min(n, max(n_out, device.least_rows))
            wanted = self._work.rows(n - n_wanted, n)
            self._run(b, wanted, b, angles, attention, self.pauses if prompt else None)
            return b.normed[n - n_out :]
        if (graphs := attention.graphs) is not None:
            key = self, long, n
            if key not in graphs:
                graphs[key] = (
                    SplitPass(self, b, angles, attention)
                    if attention.unrecorded
                    else device.record(self._run, b, b, b, angles, attention)
                )
            graphs[key].run()
        else:
            first, *others = self._graphs_for(long, n, b, angles)
            first.run()
            for layer, graph in zip(self._layers, others):
                layer.mix(attention, b, b)
                graph.run()
        return b.normed[n - n_out :]

    @contextmanager
    def watch(self, watcher: Watcher) -> Iterator[None]:
        """In the block, call `watcher` before each matrix product, with all input rows."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def _run(
        self,
        b: Rows,
        wanted: Rows,
        tokens: Rows,
        angles: list[Array],
        attention: Attention,
        pauses: Pauses | None = None,
    ) -> None:
        """From `b.ids` to `wanted.normed`: the rows for which outputs are computed from the last
        layer on that stores something of all rows.

        Mixers mix `tokens`: the first rows of `b`, where the others only fill up the pass.
        """
        self._embed(b)
        rows, last = b, self.config.last_storing
        for layer in self._layers:
            outputs = wanted if layer.index >= last else b
            layer.project(rows, outputs, angles)
            layer.mix(attention, tokens, outputs if tokens is b else tokens)
            if pauses is not None:
                pauses()
            layer.finish(outputs)
            if pauses is not None:
                pauses()
            if layer.index == last and wanted is not b:
                rows, angles = wanted, [part[-len(wanted.ids) :] for part in angles]

    def logits(self, hidden: Array, out: Array) -> None:
        """Write the logits (T, n_vocab) of `hidden` (T, n_embd), such as `forward` returns."""
        if self.pauses.is_on:
            self.pauses.refuse()
        if not 1 <= len(hidden) <= self.max_chunk:
            raise ModelError(
                f"cannot compute logits: {len(hidden)} rows, expected 1 to {self.max_chunk}"
            )
        self._project_out(hidden, out)

    def next_logits(self, hidden: npt.NDArray[np.float32]) -> Array:
        """The logits (1, n_vocab) of one hidden state (1, n_embd) of the host, as `logits` gives
        them. Operations are recorded once. The next call overwrites the result."""
        if self.pauses.is_on:
            self.pauses.refuse()
        row = self.device.put(hidden, self._work.rows(0, 1).normed)
        if self._watchers:
            self._project_out(row, self._next_logits)
            return self._next_logits
        if self._logits_graph is None:
            self._logits_graph = self.device.record(self._project_out, row, self._next_logits)
        self._logits_graph.run()
        return self._next_logits

    def _project_out(self, hidden: Array, out: Array) -> None:
        config = self.config
        self._work.linear(self._normed_in.set(hidden), self.weights.output, out)
        if config.logit_scale != 1.0:
            self.device.pointwise.scale(out, config.logit_scale)
        if config.final_softcap:
            self.device.pointwise.softcap(out, config.final_softcap)

    def _check(self, ids: I32, start: int, n_out: int) -> None:
        if self.pauses.is_on:
            self.pauses.refuse()
        if not 1 <= len(ids) <= self.max_chunk:
            raise ModelError(
                f"cannot run the model: {len(ids)} tokens, expected 1 to {self.max_chunk}"
            )
        if start < 0:
            raise ModelError(f"cannot run the model: position {start}, expected 0 or more")
        if not 1 <= n_out <= len(ids):
            raise ModelError(
                f"cannot run the model: hidden states of {n_out} tokens, expected 1 to {len(ids)}"
            )
        numbers = ids.tolist()  # for one id ten times as fast as NumPy's min and max
        low, high = min(numbers), max(numbers)
        if low < 0 or high >= self.config.n_vocab:
            raise ModelError(
                f"cannot run the model: token id {low if low < 0 else high}, "
                f"expected 0 to {self.config.n_vocab - 1}"
            )

    def _graphs_for(self, long: bool, n: int, b: Rows, angles: list[Array]) -> list[Recorded]:
        """The graphs of n rows from each layer's mixing to the next, recorded once.

        All passes use the same arrays: buffers, weights and the tables' memory.
        """
        key = long, n
        if key not in self._graphs:
            self._graphs[key] = [
                self.device.record(self._run_between, index, b, angles)
                for index in range(self.config.n_layers + 1)
            ]
        return self._graphs[key]

    def _run_between(self, index: int, b: Rows, angles: list[Array]) -> None:
        """The part of `_run` from what layer index - 1 mixed to what layer `index` will mix."""
        if index == 0:
            self._embed(b)
        else:
            self._layers[index - 1].finish(b)
        if index < len(self._layers):
            self._layers[index].project(b, b, angles)

    def run_layers(
        self, first: int, stop: int, b: Rows, angles: list[Array], attention: Attention
    ) -> None:
        """The part of `_run` from what layer first - 1 mixed to what layer `stop` will mix."""
        self._run_between(first, b, angles)
        for index in range(first, stop):
            self._layers[index].mix(attention, b, b)
            self._run_between(index + 1, b, angles)

    def mix(self, index: int, b: Rows, attention: Attention) -> None:
        """Mix in layer `index`."""
        self._layers[index].mix(attention, b, b)

    def _embed(self, b: Rows) -> None:
        """`b.x` and `b.normed` of the tokens `b.ids`, for the first layer."""
        self.device.get_rows(self.weights.token_embd, b.ids, b.x)
        if self.config.embedding_scale != 1.0:
            self.device.pointwise.scale(b.x, self.config.embedding_scale)
        if self._ones is not None:
            self.device.pointwise.rms_norm(b.x, self._ones, self.config.norm_eps, b.x)
        if self._per_layer is not None:
            self._per_layer(self._normed_in.set(b.x), b)
        if (norm := self.weights.norms[0]) is not None:
            self._work.norm(norm, b.x, b.normed)

    def _temperatures(self, start: int, n: int) -> npt.NDArray[np.float32]:
        """Factors on queries: 1 + temperature_scale * ln(1 + floor(p / n_ctx_orig))."""
        contexts = np.arange(start, start + n) // self.config.n_ctx_orig
        factors = 1.0 + self.config.temperature_scale * np.log1p(contexts)
        return factors.astype(np.float32)
