"""The forward pass of every architecture: token ids in, hidden states and logits out.

Per layer: norm → q, k, v (→ norms) → rope → attention object → output projection (→ norm) → add →
norm → gate, up → activation → down (→ norm) → add. In cohere2 both halves read the same norm.

In the last layer, what follows K and V is computed only for tokens whose hidden states are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from ..ops.device import Activations, Array, Recorded, Weight
from .attention import Attention, FirstRows
from .buffers import Buffers, Rows
from .config import ModelConfig
from .errors import ModelError
from .rope import Rotations
from .weights import LayerWeights, Linear, Weights

I32 = npt.NDArray[np.int32]
Watcher = Callable[[Activations, Weight], None]
"""Gets inputs of T rows and the matrix that will multiply them."""


class Transformer:
    """One model's forward pass, on the device of its weights, in memory that is allocated once.

    Not reentrant: one engine thread runs it. A call takes at most `max_chunk` tokens.
    """

    def __init__(self, config: ModelConfig, weights: Weights, max_chunk: int = 512) -> None:
        if max_chunk < 1:
            raise ModelError(
                f"cannot build the model: max_chunk is {max_chunk}, expected 1 or more"
            )
        self.config = config
        self.weights = weights
        self.max_chunk = max_chunk
        self._watchers: list[Watcher] = []
        self.device = device = weights.device
        self._buffers = Buffers(config, max_chunk, device)
        self._embd_in = device.activations(max_chunk, config.n_embd)
        self._attended_in = device.activations(max_chunk, config.n_heads * config.head_dim)
        self._ff_in = device.activations(max_chunk, config.n_ff)
        # A layer ends with the norm of the next one: adding and norming are one operation.
        self._next_norms = [*(w.attn_norm for w in weights.layers[1:]), weights.output_norm]
        self._rotations = Rotations(config, weights, max_chunk, device)
        self._graphs: dict[bool, list[Recorded]] = {}
        self._next_logits = device.memory((1, config.n_vocab), np.float32)
        self._logits_graph: Recorded | None = None

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
        b = self._buffers.rows(0, n_rows)
        device.put(ids, b.ids[:n])
        if config.temperature_scale:
            device.put(self._temperatures(start, n_rows), b.temperature)
        long = (n_ctx or config.n_ctx_train) > config.n_ctx_orig
        angles = self._rotations.angles(start, n_rows, long)
        if n_rows > n:
            self._run(b, b, angles, FirstRows(attention, n))
            return b.normed[n - n_out : n]
        if n > 1 or self._watchers:
            every = attention.every_query or self._watchers
            n_wanted = n if every else min(n, max(n_out, device.least_rows))
            self._run(b, self._buffers.rows(n - n_wanted, n), angles, attention)
            return b.normed[n - n_out :]
        if (graphs := attention.graphs) is not None:
            if long not in graphs:
                graphs[long] = device.record(self._run, b, b, angles, attention)
            graphs[long].run()
        else:
            first, *others = self._graphs_for(long, b, angles)
            first.run()
            for index, graph in enumerate(others):
                attention(index, b.q_heads, b.k_heads, b.v_heads, b.attended_heads)
                graph.run()
        return b.normed

    @contextmanager
    def watched(self, watcher: Watcher) -> Iterator[None]:
        """In the block, call `watcher` before each matrix product, with all input rows."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def _run(self, b: Rows, wanted: Rows, angles: list[Array], attention: Attention) -> None:
        """From `b.ids` to `wanted.normed`, the rows for which the last layer computes outputs."""
        self._embed(b)
        last = self.config.n_layers - 1
        for index in range(last + 1):
            outputs = wanted if index == last else b
            self._project(index, b, outputs, angles)
            attention(index, outputs.q_heads, b.k_heads, b.v_heads, outputs.attended_heads)
            self._finish(index, outputs)

    def logits(self, hidden: Array, out: Array) -> None:
        """Write the logits (T, n_vocab) of `hidden` (T, n_embd), such as `forward` returns."""
        if not 1 <= len(hidden) <= self.max_chunk:
            raise ModelError(
                f"cannot compute logits: {len(hidden)} rows, expected 1 to {self.max_chunk}"
            )
        self._project_out(hidden, out)

    def next_logits(self, hidden: npt.NDArray[np.float32]) -> Array:
        """The logits (1, n_vocab) of one hidden state (1, n_embd) of the host, as `logits` gives
        them. Operations are recorded once. The next call overwrites the result."""
        row = self.device.put(hidden, self._buffers.rows(0, 1).normed)
        if self._watchers:
            self._project_out(row, self._next_logits)
            return self._next_logits
        if self._logits_graph is None:
            self._logits_graph = self.device.record(self._project_out, row, self._next_logits)
        self._logits_graph.run()
        return self._next_logits

    def _project_out(self, hidden: Array, out: Array) -> None:
        config = self.config
        self._linear(self._embd_in.set(hidden), self.weights.output, out)
        if config.logit_scale != 1.0:
            self.device.pointwise.scale(out, config.logit_scale)
        if config.final_softcap:
            self.device.pointwise.softcap(out, config.final_softcap)

    def _check(self, ids: I32, start: int, n_out: int) -> None:
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

    def _graphs_for(self, long: bool, b: Rows, angles: list[Array]) -> list[Recorded]:
        """The graphs of a single token from each layer's attention to the next, recorded once.

        All tokens use the same arrays: buffers, weights and the tables' memory.
        """
        if long not in self._graphs:
            self._graphs[long] = [
                self.device.record(self._between, index, b, angles)
                for index in range(self.config.n_layers + 1)
            ]
        return self._graphs[long]

    def _between(self, index: int, b: Rows, angles: list[Array]) -> None:
        """The part of `_run` from the attention of layer index - 1 to that of layer `index`."""
        if index == 0:
            self._embed(b)
        else:
            self._finish(index - 1, b)
        if index < self.config.n_layers:
            self._project(index, b, b, angles)

    def _embed(self, b: Rows) -> None:
        """`b.x` and `b.normed` of the tokens `b.ids`, for the first layer."""
        self.device.get_rows(self.weights.token_embd, b.ids, b.x)
        if self.config.embedding_scale != 1.0:
            self.device.pointwise.scale(b.x, self.config.embedding_scale)
        self._norm(b, self.weights.layers[0].attn_norm)

    def _project(self, index: int, b: Rows, outputs: Rows, angles: list[Array]) -> None:
        """rope(k) and v of `b.normed`, rope(q) of `outputs.normed`, which `_embd_in` then holds.

        Rotates the other rows of q, too, though nobody reads them.
        """
        layer, rotation = self.weights.layers[index], self._rotations.of_layer[index]
        eps, style = self.config.norm_eps, self.config.architecture.rope
        pointwise = self.device.pointwise
        source = self._embd_in.set(b.normed)
        q, k, v = (layer.attn_q, outputs.q), (layer.attn_k, b.k), (layer.attn_v, b.v)
        if outputs is b:
            self._multiply(source, k, v, q)
        else:
            self._multiply(source, k, v)
            self._multiply(source.set(outputs.normed), q)
        self._add_biases(q, k, v)
        if layer.attn_q_norm is not None and layer.attn_k_norm is not None:
            pointwise.rms_norm(b.q_rows, layer.attn_q_norm, eps, b.q_rows)
            pointwise.rms_norm(b.k_rows, layer.attn_k_norm, eps, b.k_rows)
        if rotation is not None:
            pointwise.rope(b.q_heads, b.k_heads, angles[rotation], style)
        if self.config.temperature_scale:
            pointwise.scale_rows(b.q, b.temperature)

    def _finish(self, index: int, b: Rows) -> None:
        """From `b.attended` and `b.normed` to the layer's output, normed for the next layer."""
        layer = self.weights.layers[index]
        if self.config.architecture.parallel:
            # Both halves read the same normed input, which `_embd_in` still holds.
            self._linear(self._attended_in.set(b.attended), layer.attn_output, b.branch)
            self._feed_forward(layer, b, b.other)
            self.device.pointwise.add(b.x, b.other, b.x)
        else:
            assert layer.ffn_norm is not None
            self._linear(self._attended_in.set(b.attended), layer.attn_output, b.branch)
            self._join(b, layer.post_attention_norm, layer.ffn_norm)
            self._embd_in.set(b.normed)
            self._feed_forward(layer, b, b.branch)
        self._join(b, layer.post_ffw_norm, self._next_norms[index])

    def _feed_forward(self, layer: LayerWeights, b: Rows, out: Array) -> None:
        """ffn_down(activation(ffn_gate) * ffn_up) of what `_embd_in` holds, into `out`."""
        pointwise = self.device.pointwise
        gate, up = (layer.ffn_gate, b.gate), (layer.ffn_up, b.up)
        self._multiply(self._embd_in, gate, up)
        self._add_biases(gate, up)
        gated = (
            pointwise.swiglu if self.config.architecture.activation == "silu" else pointwise.geglu
        )
        gated(b.gate, b.up, b.gate)
        self._linear(self._ff_in.set(b.gate), layer.ffn_down, out)

    def _join(self, b: Rows, post_norm: Array | None, next_norm: Array) -> None:
        """x += branch, which `post_norm` norms first if it is given; normed = norm of x."""
        eps, pointwise = self.config.norm_eps, self.device.pointwise
        if post_norm is not None:
            pointwise.rms_norm(b.branch, post_norm, eps, b.branch)
        if self.config.architecture.norm == "rms":
            pointwise.add_rms_norm(b.x, b.branch, next_norm, eps, b.normed)
        else:
            pointwise.add_layer_norm(b.x, b.branch, next_norm, None, eps, b.normed)

    def _norm(self, b: Rows, weight: Array) -> None:
        pointwise = self.device.pointwise
        if self.config.architecture.norm == "rms":
            pointwise.rms_norm(b.x, weight, self.config.norm_eps, b.normed)
        else:
            pointwise.layer_norm(b.x, weight, None, self.config.norm_eps, b.normed)

    def _multiply(self, source: Activations, *products: tuple[Linear, Array]) -> None:
        """Write the product of the source's vectors by each matrix, without its bias."""
        weights = [projection.weight for projection, _ in products]
        for watcher in self._watchers:
            for weight in weights:
                watcher(source, weight)
        self.device.linear_many(source, weights, [out for _, out in products])

    def _add_biases(self, *products: tuple[Linear, Array]) -> None:
        for projection, out in products:
            if projection.bias is not None:
                self.device.pointwise.add_row(out, projection.bias)

    def _linear(self, source: Activations, projection: Linear, out: Array) -> None:
        self._multiply(source, (projection, out))
        self._add_biases((projection, out))

    def _temperatures(self, start: int, n: int) -> npt.NDArray[np.float32]:
        """Factors on queries: 1 + temperature_scale * ln(1 + floor(p / n_ctx_orig))."""
        contexts = np.arange(start, start + n) // self.config.n_ctx_orig
        factors = 1.0 + self.config.temperature_scale * np.log1p(contexts)
        return factors.astype(np.float32)
