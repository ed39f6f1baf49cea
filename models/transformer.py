"""The forward pass of every architecture: token ids in, hidden states and logits out.

Per layer: norm → q, k, v (→ norms) → rope → attention object → output projection (→ norm) → add →
norm → gate, up → activation → down (→ norm) → add. cohere2 feeds both halves from one norm.

What follows K and V in the last layer reaches only a token's own logits: it is computed for the
tokens whose hidden states are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from ..jit.launch import Graph, record
from ..ops import pointwise
from ..ops.linear import Activations, Weight, get_rows, linear
from .attention import Attention
from .buffers import Buffers, Rows
from .config import ModelConfig, RopeConfig
from .errors import ModelError
from .rope import RopeTable
from .weights import LayerWeights, Linear, Weights

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
Watcher = Callable[[Activations, Weight], None]
"""Called with inputs of T rows and the matrix that they are about to be multiplied by."""

_LEAST_ROWS = 8
"""Of a chunk, in the last layer: kernels for many tokens add in another order than those for few,
so that fewer rows would not have the bits that they have among all."""


class Transformer:
    """One model's forward pass over preallocated memory; no allocation that grows with a token.

    Not reentrant: one engine thread runs it. `max_chunk` is the most tokens one call may read.
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
        self._buffers = Buffers(config, max_chunk)
        self._embd_in = Activations(max_chunk, config.n_embd)
        self._attended_in = Activations(max_chunk, config.n_heads * config.head_dim)
        self._ff_in = Activations(max_chunk, config.n_ff)
        # A layer ends where the next one's norm begins: adding and norming are one operation.
        self._next_norms = [*(w.attn_norm for w in weights.layers[1:]), weights.output_norm]
        ropes = [layer.rope for layer in config.layers]
        self._ropes: list[RopeConfig] = list(dict.fromkeys(r for r in ropes if r is not None))
        self._rotation_of = [None if r is None else self._ropes.index(r) for r in ropes]
        self._tables: dict[bool, tuple[RopeTable, ...]] = {}
        self._graphs: dict[bool, list[Graph]] = {}

    def forward(
        self,
        ids: I32,
        start: int,
        attention: Attention,
        n_ctx: int | None = None,
        n_out: int | None = None,
    ) -> F32:
        """Hidden states after `output_norm` of the last `n_out` (default: all) of the tokens `ids`
        (T,) at positions start….

        `attention` must hold the keys and values of positions 0 … start - 1. `n_ctx` is the size of
        the context (default: the training length): longrope models have one set of frequencies
        for contexts up to their original length and another beyond. Returns float32
        (n_out, n_embd), which the next call overwrites; they have the same bits among any number.
        Raises `ModelError` for ids outside the vocabulary, for more than `max_chunk` of them, and
        for an `n_out` that is not 1 to T.
        """
        n = len(ids)
        n_out = n if n_out is None else n_out
        self._check(ids, start, n_out)
        config, b = self.config, self._buffers.rows(0, n)
        b.ids[:] = ids
        if config.temperature_scale:
            self._fill_temperature(b.temperature, start)
        long = (n_ctx or config.n_ctx_train) > config.n_ctx_orig
        angles = [table.rows(start, n) for table in self._tables_for(long)]
        if n > 1 or self._watchers:
            every = attention.every_query or self._watchers
            end = b if every else self._end_of(n, n_out)
            self._run(b, end, angles, attention)
            return b.normed[n - n_out :]
        if (kept := attention.graphs) is not None:
            if long not in kept:
                kept[long] = record(self._run, b, b, angles, attention)
            kept[long].run()
        else:
            first, *others = self._graphs_for(long, b, angles)
            first.run()
            for index, graph in enumerate(others):
                attention(index, b.q_heads, b.k_heads, b.v_heads, b.attended_heads)
                graph.run()
        return b.normed

    @contextmanager
    def watched(self, watcher: Watcher) -> Iterator[None]:
        """While it is open, `watcher` sees the inputs of every matrix, all rows of them."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def _end_of(self, n: int, n_out: int) -> Rows:
        """The last rows of n, at least `n_out`."""
        return self._buffers.rows(n - min(n, max(n_out, _LEAST_ROWS)), n)

    def _run(self, b: Rows, end: Rows, angles: list[F32], attention: Attention) -> None:
        """All of it, from `b.ids` to `end.normed`; `end`: the rows that leave the last layer."""
        self._embed(b)
        last = self.config.n_layers - 1
        for index in range(last + 1):
            self._layer(index, b, end if index == last else b, angles, attention)

    def _layer(
        self, index: int, b: Rows, leaving: Rows, angles: list[F32], attention: Attention
    ) -> None:
        """Layer `index`: from `b.x` and `b.normed` to those of `leaving`, the rows whose outputs
        are wanted, normed for the layer after it or by the last norm."""
        self._project(index, b, leaving, angles)
        attention(index, leaving.q_heads, b.k_heads, b.v_heads, leaving.attended_heads)
        self._finish(index, leaving)

    def logits(self, hidden: F32, out: F32) -> None:
        """Write the logits (T, n_vocab) of `hidden` (T, n_embd), as `forward` gave it."""
        config = self.config
        if not 1 <= len(hidden) <= self.max_chunk:
            raise ModelError(
                f"cannot compute logits: {len(hidden)} rows, expected 1 to {self.max_chunk}"
            )
        self._linear(self._embd_in.set(hidden), self.weights.output, out)
        if config.logit_scale != 1.0:
            np.multiply(out, np.float32(config.logit_scale), out=out)
        if config.final_softcap:
            pointwise.softcap(out, config.final_softcap)

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
        known = ids.tolist()  # for the one id of decode a tenth of what NumPy's min and max take
        low, high = min(known), max(known)
        if low < 0 or high >= self.config.n_vocab:
            raise ModelError(
                f"cannot run the model: token id {low if low < 0 else high}, "
                f"expected 0 to {self.config.n_vocab - 1}"
            )

    def _graphs_for(self, long: bool, b: Rows, angles: list[F32]) -> list[Graph]:
        """What single tokens run between the attention of two layers, recorded once.

        The arrays are the same for every token: buffers, weights and the tables' memory.
        """
        if long not in self._graphs:
            self._graphs[long] = [
                record(self._between, index, b, angles) for index in range(self.config.n_layers + 1)
            ]
        return self._graphs[long]

    def _between(self, index: int, b: Rows, angles: list[F32]) -> None:
        """What `_run` does from the attention of layer index - 1, or the embedding, to that of
        layer `index`, or the end."""
        if index == 0:
            self._embed(b)
        else:
            self._finish(index - 1, b)
        if index < self.config.n_layers:
            self._project(index, b, b, angles)

    def _embed(self, b: Rows) -> None:
        """`b.x` and `b.normed` of the tokens `b.ids`, for the first layer."""
        get_rows(self.weights.token_embd, b.ids, b.x)
        if self.config.embedding_scale != 1.0:
            pointwise.scale(b.x, self.config.embedding_scale)
        self._norm(b, self.weights.layers[0].attn_norm)

    def _project(self, index: int, b: Rows, leaving: Rows, angles: list[F32]) -> None:
        """rope(k) and v of `b.normed`, rope(q) of `leaving.normed`; `_embd_in` holds the latter.

        What other rows of q hold is turned for nothing.
        """
        layer, rotation = self.weights.layers[index], self._rotation_of[index]
        eps, style = self.config.norm_eps, self.config.architecture.rope
        source = self._embd_in.set(b.normed)
        for projection, out in ((layer.attn_k, b.k), (layer.attn_v, b.v)):
            self._multiply(source, projection.weight, out)
        if leaving is not b:
            source.set(leaving.normed)
        self._multiply(source, layer.attn_q.weight, leaving.q)
        for projection, out in (
            (layer.attn_q, leaving.q),
            (layer.attn_k, b.k),
            (layer.attn_v, b.v),
        ):
            self._add_bias(projection, out)
        if layer.attn_q_norm is not None and layer.attn_k_norm is not None:
            pointwise.rms_norm(b.q_rows, layer.attn_q_norm, eps, b.q_rows)
            pointwise.rms_norm(b.k_rows, layer.attn_k_norm, eps, b.k_rows)
        if rotation is not None:
            pointwise.rope(b.q_heads, b.k_heads, angles[rotation], style)
        if self.config.temperature_scale:
            pointwise.scale_rows(b.q, b.temperature)

    def _finish(self, index: int, b: Rows) -> None:
        """The layer's output from `b.attended` and `b.normed`; normed for the next layer."""
        layer = self.weights.layers[index]
        if self.config.architecture.parallel:
            # Both halves read the same normed input, which `_embd_in` still holds.
            self._linear(self._attended_in.set(b.attended), layer.attn_output, b.branch)
            self._feed_forward(layer, b, b.other)
            pointwise.add(b.x, b.other, b.x)
        else:
            assert layer.ffn_norm is not None
            self._linear(self._attended_in.set(b.attended), layer.attn_output, b.branch)
            self._join(b, layer.post_attention_norm, layer.ffn_norm)
            self._embd_in.set(b.normed)
            self._feed_forward(layer, b, b.branch)
        self._join(b, layer.post_ffw_norm, self._next_norms[index])

    def _feed_forward(self, layer: LayerWeights, b: Rows, out: F32) -> None:
        """ffn_down(activation(ffn_gate) * ffn_up) of what `_embd_in` holds, into `out`."""
        for projection, result in ((layer.ffn_gate, b.gate), (layer.ffn_up, b.up)):
            self._multiply(self._embd_in, projection.weight, result)
        for projection, result in ((layer.ffn_gate, b.gate), (layer.ffn_up, b.up)):
            self._add_bias(projection, result)
        gated = (
            pointwise.swiglu if self.config.architecture.activation == "silu" else pointwise.geglu
        )
        gated(b.gate, b.up, b.gate)
        self._linear(self._ff_in.set(b.gate), layer.ffn_down, out)

    def _join(self, b: Rows, post_norm: F32 | None, next_norm: F32) -> None:
        """x += branch, itself normed where the architecture says so; then norm x for what reads."""
        eps = self.config.norm_eps
        if post_norm is not None:
            pointwise.rms_norm(b.branch, post_norm, eps, b.branch)
        if self.config.architecture.norm == "rms":
            pointwise.add_rms_norm(b.x, b.branch, next_norm, eps, b.normed)
        else:
            pointwise.add_layer_norm(b.x, b.branch, next_norm, None, eps, b.normed)

    def _norm(self, b: Rows, weight: F32) -> None:
        if self.config.architecture.norm == "rms":
            pointwise.rms_norm(b.x, weight, self.config.norm_eps, b.normed)
        else:
            pointwise.layer_norm(b.x, weight, None, self.config.norm_eps, b.normed)

    def _multiply(self, source: Activations, weight: Weight, out: F32) -> None:
        for watcher in self._watchers:
            watcher(source, weight)
        linear(source, weight, out)

    def _linear(self, source: Activations, projection: Linear, out: F32) -> None:
        self._multiply(source, projection.weight, out)
        self._add_bias(projection, out)

    def _add_bias(self, projection: Linear, out: F32) -> None:
        if projection.bias is not None:
            pointwise.add_row(out, projection.bias)

    def _tables_for(self, long: bool) -> tuple[RopeTable, ...]:
        """One table per rotation, for contexts beyond the original length or up to it."""
        if long not in self._tables:
            factors = self._rope_factors(long)
            self._tables[long] = tuple(
                RopeTable(rope, self.max_chunk, factors) for rope in self._ropes
            )
        return self._tables[long]

    def _rope_factors(self, long: bool) -> F32 | None:
        weights = self.weights
        if self.config.rope_tensors == "freqs":
            return weights.rope_freqs
        return weights.rope_long if long else weights.rope_short

    def _fill_temperature(self, out: F32, start: int) -> None:
        """Factors on queries: 1 + temperature_scale * ln(1 + floor(p / n_ctx_orig))."""
        laps = np.arange(start, start + len(out)) // self.config.n_ctx_orig
        out[:] = 1.0 + self.config.temperature_scale * np.log1p(laps)
