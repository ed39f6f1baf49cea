"""Embeddings of a token for each layer, and what a layer adds to x by them.

    e[l]   = (sqrt(P) table[token, l] + norm(model_proj[l] x_0 / sqrt(D))) / sqrt(2)
    x     += post_norm(proj (gelu(inp_gate x) * e[l]))                     at the end of layer l

with x_0 the token's scaled embedding and P numbers for each layer. The table has one row of L * P
numbers for each token, which are looked up as L rows of P where the file has them: no kernel reads
the rest of it. Source: llama.cpp, `src/models/gemma4.cpp`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..ops.device import Activations, Array, Weight
from .config import ModelConfig
from .errors import ModelError
from .loader import Linear, Loader, Norm
from .workspace import Rows, Widths, Workspace


@dataclass(frozen=True)
class PerLayerEmbedding:
    """The tensors that make embeddings for all layers."""

    table: Weight
    """(V * L, P)"""
    model_proj: dict[int, Linear]
    """(P, D), by layer."""
    proj_norm: Norm

    @staticmethod
    def load(loader: Loader, config: ModelConfig) -> PerLayerEmbedding:
        """Read `per_layer_token_embd`, `per_layer_model_proj` and `per_layer_proj_norm`.

        Raises `ModelError` where a block of the table's type reaches over two layers.
        """
        n_layers, n = config.n_layers, config.n_embd_per_layer
        name = "per_layer_token_embd.weight"
        tensor = loader.tensor(name, (config.n_vocab, n_layers * n))
        if n % tensor.type.block:
            raise ModelError(
                f"cannot load the model: tensor {name} has type {tensor.type.name}, in blocks of "
                f"{tensor.type.block}, expected a type whose blocks divide {n} numbers of a layer"
            )
        rows = tensor.data.reshape(config.n_vocab * n_layers, -1)
        parts = loader.split("per_layer_model_proj", [n] * n_layers, config.n_embd)
        return PerLayerEmbedding(
            table=loader.device.weight(tensor.type, rows, n, name, None),
            model_proj=dict(enumerate(parts)),
            proj_norm=loader.norm("per_layer_proj_norm", n),
        )


@dataclass(frozen=True)
class PerLayerWeights:
    """The tensors by which one layer adds its embedding."""

    inp_gate: Linear
    proj: Linear
    post_norm: Norm

    @staticmethod
    def load(loader: Loader, prefix: str, config: ModelConfig) -> PerLayerWeights:
        """Read `{prefix}.inp_gate`, `proj` and `post_norm`."""
        n, n_embd = config.n_embd_per_layer, config.n_embd
        return PerLayerWeights(
            inp_gate=loader.linear(f"{prefix}.inp_gate", n, n_embd),
            proj=loader.linear(f"{prefix}.proj", n_embd, n),
            post_norm=loader.norm(f"{prefix}.post_norm", n_embd),
        )


def widths(config: ModelConfig) -> Widths:
    """The memory of both parts."""
    n, all_layers = config.n_embd_per_layer, config.n_layers * config.n_embd_per_layer
    if not n:
        return Widths({}, {})
    rows = {"of_layers": all_layers, "projected": all_layers, "inp_gate": n}
    return Widths(rows, {"inp_gate": n})


class PerLayerInputs:
    """Makes the embeddings of tokens for all layers, into the memory `of_layers`."""

    def __init__(self, weights: PerLayerEmbedding, config: ModelConfig, work: Workspace) -> None:
        self._weights, self._config, self._work = weights, config, work
        n_ids = work.max_chunk * config.n_layers
        self._ids = work.device.memory((n_ids,), np.int32)
        work.device.put(np.zeros(n_ids, np.int32), self._ids)  # a graph checks it when recorded

    def put(self, ids: npt.NDArray[np.int32], n_rows: int) -> None:
        """The tokens of the next pass, which computes `n_rows` rows."""
        n_layers = self._config.n_layers
        padded = np.zeros(n_rows, np.int32)
        padded[: len(ids)] = ids
        rows = padded * np.int32(n_layers) + np.arange(n_layers, dtype=np.int32)[:, None]
        self._work.device.put(rows.reshape(-1), self._ids[: n_rows * n_layers])

    def __call__(self, source: Activations, b: Rows) -> None:
        """The embeddings of the rows of `b`, whose x `source` holds."""
        config, weights, work = self._config, self._weights, self._work
        pointwise, n = work.device.pointwise, config.n_embd_per_layer
        looked_up, projected = (
            b.array(name, config.n_layers * n).reshape(-1, n) for name in ("of_layers", "projected")
        )
        work.device.get_rows(weights.table, self._ids[: len(looked_up)], looked_up)
        pointwise.scale(looked_up, math.sqrt(n))
        products = (
            (matrix, b.part("projected", layer, n)) for layer, matrix in weights.model_proj.items()
        )
        work.multiply(source, *products)
        pointwise.scale(projected, 1.0 / math.sqrt(config.n_embd))
        work.norm(weights.proj_norm, projected, projected)
        pointwise.add(looked_up, projected, looked_up)
        pointwise.scale(looked_up, math.sqrt(0.5))


class PerLayerBranch:
    """What layer `index` adds to x by its embedding of each token, before `post_norm`."""

    def __init__(
        self, weights: PerLayerWeights, index: int, config: ModelConfig, work: Workspace
    ) -> None:
        self._weights, self._index, self._config, self._work = weights, index, config, work
        self.post_norm = weights.post_norm
        self._x_in, self._gated_in = work.input("normed"), work.input("inp_gate")

    def __call__(self, b: Rows, out: Array) -> None:
        """Write the branch, float32 (T, n_embd), of the rows `b`."""
        weights, work = self._weights, self._work
        gate = b.array("inp_gate", self._config.n_embd_per_layer)
        work.linear(self._x_in.set(b.x), weights.inp_gate, gate)
        of_layer = b.part("of_layers", self._index, self._config.n_embd_per_layer)
        work.device.pointwise.geglu(gate, of_layer, gate)
        work.linear(self._gated_in.set(gate), weights.proj, out)
