"""What layers compute with: memory that is allocated once, matrix products and norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from ..ops.device import Activations, Array, Device, Scratch
from ..ops.experts import ExpertWeights, Routing
from .config import ModelConfig
from .loader import Linear, Norm


class Routed(NamedTuple):
    """To which expert's matrix, of how many, each row of inputs goes: int64 (rows,)."""

    ids: Array
    n_experts: int


Watcher: TypeAlias = Callable[[Array, str, Routed | None], None]
"""Gets inputs float32 (rows, K) of a product, the name of the matrix, and, where experts have one
each, whose it is."""


class Widths(NamedTuple):
    """How wide the memory of a forward pass is, by name: what it is planned and allocated by."""

    rows: dict[str, int]
    """Floats of a row: layers share memory of one name."""
    inputs: dict[str, int]
    """Columns of the inputs of matrix products."""

    @staticmethod
    def widest(parts: Sequence[Widths]) -> Widths:
        """The largest number of each name."""

        def most(numbers: list[dict[str, int]]) -> dict[str, int]:
            return {k: max(x.get(k, 0) for x in numbers) for one in numbers for k in one}

        return Widths(most([part.rows for part in parts]), most([part.inputs for part in parts]))


class Rows:
    """Rows first … stop - 1 of the forward pass's memory: token ids, and arrays by name.

    The first `n_tokens` of them hold tokens; others only fill up a pass.
    """

    def __init__(
        self,
        config: ModelConfig,
        memory: dict[str, Array],
        ids: Array,
        span: tuple[int, int],
        n_tokens: int,
    ) -> None:
        first, stop = span
        self._memory, self._first, self._stop, self.n_tokens = memory, first, stop, n_tokens
        self._views: dict[tuple[str | int, ...], Array] = {}
        self.ids = ids[first:stop]
        self.x, self.normed, self.branch = (
            self.array(name, config.n_embd) for name in ("x", "normed", "branch")
        )

    def array(self, name: str, *shape: int) -> Array:
        """float32 (n, *shape): these rows of the memory `name`, the same object each time.

        All who use the memory at one time give a row as many floats.
        """
        key: tuple[str | int, ...] = (name, *shape)
        if key not in self._views:
            width = math.prod(shape)
            rows = self._memory[name][self._first * width : self._stop * width]
            self._views[key] = rows.reshape(self._stop - self._first, *shape)
        return self._views[key]

    def part(self, name: str, index: int, width: int) -> Array:
        """float32 (n, width): these rows of part `index` of the memory `name`, which a pass that
        ends with them fills as [part][row][width]; the same object each time."""
        key = name, "part", index, width
        if key not in self._views:
            size = self._stop * width
            rows = self._memory[name][index * size : (index + 1) * size]
            self._views[key] = rows.reshape(self._stop, width)[self._first :]
        return self._views[key]


class Workspace:
    """The memory of a device for up to `max_chunk` tokens, and what layers do with it.

    alone: of the inputs of products, see `Device.activations`. Later calls allocate nothing but
    views.
    """

    def __init__(
        self,
        config: ModelConfig,
        device: Device,
        max_chunk: int,
        widths: Widths,
        *,
        alone: bool = False,
    ) -> None:
        self.device = device
        self.watchers: list[Watcher] = []
        self._eps, self._rms = config.norm_eps, config.architecture.norm == "rms"
        self._config = config
        self._memory = {
            name: device.memory((max_chunk * width,), np.float32)
            for name, width in widths.rows.items()
        }
        if config.architecture.norms_in_place:
            self._memory["normed"] = self._memory["x"]
        # A pass also computes rows that hold no token: these have to hold numbers.
        if (mixed := self._memory.get("mixed")) is not None:
            device.put(np.zeros(len(mixed), np.float32), mixed)
        # Recording a graph reads the ids, so they have to be valid from the start.
        self._ids = device.memory((max_chunk,), np.int32)
        device.put(np.zeros(max_chunk, np.int32), self._ids)
        self._inputs = {
            name: device.activations(max_chunk, n_cols, alone=alone)
            for name, n_cols in widths.inputs.items()
        }
        self._rows: dict[tuple[int, int, int], Rows] = {}
        self.max_chunk = max_chunk
        self._shared: dict[Hashable, Scratch] = {}

    def rows(self, first: int, stop: int, n_tokens: int | None = None) -> Rows:
        """Rows first … stop - 1, of which the first `n_tokens` (None: all) hold tokens; the same
        object as long as it is cached."""
        key = first, stop, stop - first if n_tokens is None else n_tokens
        if key not in self._rows:
            # Most are single tokens and full chunks; a prompt has one chunk of another size.
            if len(self._rows) >= 8:
                self._rows.clear()
            self._rows[key] = Rows(self._config, self._memory, self._ids, (first, stop), key[2])
        return self._rows[key]

    def experts_scratch(self, routing: Routing, n_embd: int, n_ff: int) -> Scratch:
        """The memory of routed experts of these sizes, which layers share."""
        make, sizes = self.device.experts_scratch, (routing, n_embd, n_ff)
        return self.shared(sizes, lambda: make(*sizes, self.max_chunk))

    def input(self, name: str) -> Activations:
        """The input of matrix products with this name."""
        return self._inputs[name]

    def shared(self, key: Hashable, make: Callable[[], Scratch]) -> Scratch:
        """Memory of an operation that layers use one after the other, made by the first one."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def multiply(self, source: Activations, *products: tuple[Linear, Array]) -> None:
        """Write the product of the source's vectors by each matrix, without its bias, but with what
        adapters add."""
        weights = [projection.weight for projection, _ in products]
        outs = [out for _, out in products]
        for watcher in self.watchers:
            rows = source.x[: len(products[0][1])]
            for weight in weights:
                watcher(rows, weight.name, None)
        self.device.linear_many(source, weights, outs)
        adapted = [(p.adapter, out) for p, out in products if p.adapter is not None]
        if adapted:
            make = self.device.low_rank_scratch
            scratch = self.shared("adapters", lambda: make(self.max_chunk))
            self.device.add_low_rank(source, adapted, scratch)

    def heads(
        self, source: Activations, matrices: Sequence[Linear], x: Array, out: Array, *, stack: bool
    ) -> None:
        """out[h] = x[h] W_h^T, float32 (H, n, …), of the matrices W_h of all heads; stack: they are
        a tensor of the file, and watchers get the inputs of each."""
        for h, (projection, rows, product) in enumerate(zip(matrices, x, out, strict=True)):
            name = projection.weight.name.partition("[")[0]
            for watcher in self.watchers if stack else ():
                watcher(rows, name, Routed(np.full(len(rows), h), len(matrices)))
            self.device.linear(source.set(rows), projection.weight, product)

    def experts(
        self,
        source: Activations,
        logits: Array,
        weights: ExpertWeights,
        scratch: Scratch,
        b: Rows,
        out: Array,
    ) -> None:
        """What routed experts give for the vectors of `source` by the router's `logits`.

        Rows of `b` that only fill up the pass choose none: their rows of `out` stay.
        """
        n, rows = b.n_tokens, source.x[: len(logits)]
        if n == len(logits):
            self.device.experts(source, logits, weights, scratch, out)
        else:
            few = source.set(rows[:n])
            self.device.experts(few, logits[:n], weights, scratch, out[:n], prompt=True)
            source.set(rows)
        for watcher in self.watchers:
            self._tell_experts(watcher, rows, weights, scratch)

    def _tell_experts(
        self, watcher: Watcher, rows: Array, weights: ExpertWeights, scratch: Scratch
    ) -> None:
        """The inputs that the experts have just had, sorted by expert."""
        tokens, experts = scratch.chosen(len(rows))
        routed = Routed(experts, weights.routing.n_experts)
        for name in dict.fromkeys(m.name for m in weights.inner):  # the same one if they are fused
            watcher(rows[tokens], name, routed)
        watcher(scratch.hidden.x, weights.down.name, routed)

    def add_biases(self, *products: tuple[Linear, Array]) -> None:
        """Add the bias of each projection that has one."""
        for projection, out in products:
            if projection.bias is not None:
                self.device.pointwise.add_row(out, projection.bias)

    def linear(self, source: Activations, projection: Linear, out: Array) -> None:
        """The product with one matrix, with its bias."""
        self.multiply(source, (projection, out))
        self.add_biases((projection, out))

    def norm(self, norm: Norm, x: Array, out: Array, eps: float | None = None) -> None:
        """out = norm of x, in the architecture's kind; eps: the model's, or another."""
        pointwise, eps = self.device.pointwise, eps or self._eps
        if self._rms:
            pointwise.rms_norm(x, norm.weight, eps, out)
        else:
            pointwise.layer_norm(x, norm.weight, norm.bias, eps, out)

    def add_norm(self, norm: Norm, x: Array, branch: Array, out: Array) -> None:
        """x += branch; out = norm of x; out may be x."""
        pointwise = self.device.pointwise
        if self._rms:
            pointwise.add_rms_norm(x, branch, norm.weight, self._eps, out)
        else:
            pointwise.add_layer_norm(x, branch, norm.weight, norm.bias, self._eps, out)
