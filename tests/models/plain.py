"""The operations of a forward pass in plain NumPy, and models built from arrays without a file.

They stand in for the kernels, so that a test can tell whether an architecture is described rightly
from whether a kernel computes rightly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvarn.jit.arena import Arena
from kvarn.models import ModelConfig
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.cpu import Cpu
from kvarn.ops.reference import attention as attention_reference
from kvarn.ops.reference import pointwise as reference
from kvarn.ops.reference.quants import dequantise
from kvarn.ops.types import QUANT_TYPES, QuantType

from .plain_experts import PlainExperts, gelu_ggml, plain_experts
from .plain_recurrent import RECURRENT


@dataclass(frozen=True)
class ArrayTensor:
    """A float32 array that looks like a tensor of a file."""

    name: str
    values: np.ndarray
    type: QuantType = QUANT_TYPES["F32"]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def data(self) -> np.ndarray:
        return np.ascontiguousarray(self.values).view(np.uint8)

    def release(self) -> None:
        """An array of this process is all there is."""


def as_tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, ArrayTensor]:
    """Arrays by name as tensors by name."""
    return {name: ArrayTensor(name, values) for name, values in arrays.items()}


class PlainWeight:
    """A matrix, dequantised to float32."""

    is_copy = False

    def __init__(self, matrix: np.ndarray, name: str) -> None:
        self.matrix = matrix
        self.name = name

    @staticmethod
    def prepare(
        kind: QuantType, data: np.ndarray, n_cols: int, name: str = "", arena: Arena | None = None
    ) -> PlainWeight:
        matrix = dequantise(kind, data).reshape(-1, n_cols)
        return PlainWeight(np.ascontiguousarray(matrix, np.float32), name)


class PlainActivations:
    """The input of a matrix product: a copy, as the kernels' quantised input is one."""

    def __init__(self, max_rows: int, n_cols: int, *, alone: bool = False) -> None:
        self.x = np.empty((max_rows, n_cols), np.float32)
        self.n = 0

    def set(self, x: np.ndarray) -> PlainActivations:
        self.n = len(x)
        self.x[: self.n] = x
        return self


def plain_linear(act: PlainActivations, weight: PlainWeight, out: np.ndarray) -> None:
    """out = x W^T, summed in float64: in float32 it would depend on the order of BLAS on a CPU."""
    out[:] = np.matmul(act.x[: act.n], weight.matrix.T, dtype=np.float64)


def plain_add_low_rank(
    act: PlainActivations,
    products: Sequence[tuple[tuple[np.ndarray, np.ndarray], np.ndarray]],
    scratch: None,
) -> None:
    """out += B (A x)."""
    for (a, b), out in products:
        np.add(out, act.x[: act.n] @ a.T @ b.T, out=out)


def plain_get_rows(weight: PlainWeight, ids: np.ndarray, out: np.ndarray) -> None:
    """Rows of a matrix."""
    out[:] = weight.matrix[ids]


def plain_record(function: Callable[..., None], *args: Any) -> SimpleNamespace:
    """Plain operations are no steps: the "graph" calls the function anew."""
    return SimpleNamespace(run=lambda: function(*args))


def _into(function: Callable[..., np.ndarray]) -> Callable[..., None]:
    """An operation that writes what the function makes of all but the last argument into that."""

    def operation(*args: Any) -> None:
        args[-1][:] = function(*args[:-1])

    return operation


def _in_place(function: Callable[..., np.ndarray]) -> Callable[..., None]:
    """An operation that writes what the function makes of all arguments into the first."""

    def operation(x: np.ndarray, *args: Any) -> None:
        x[:] = function(x, *args)

    return operation


def _add_and(norm: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Callable[..., None]:
    """An operation that changes x to the sum, and writes its norm into the last argument."""

    def operation(x: np.ndarray, *args: Any) -> None:
        x[:], args[-1][:] = norm(x, *args[:-1])

    return operation


def _rope(q: np.ndarray, k: np.ndarray, cos_sin: np.ndarray, style: str) -> None:
    for x in (q, k):
        x[:] = reference.rope_reference(x, cos_sin, style)


def _split_pairs(x: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
    first[:], second[:] = x[:, :, 0], x[:, :, 1]


POINTWISE = SimpleNamespace(
    split_pairs=_split_pairs,
    rope=_rope,
    add=_into(np.add),
    rms_norm=_into(reference.rms_norm_reference),
    layer_norm=_into(reference.layer_norm_reference),
    swiglu=_into(reference.swiglu_reference),
    geglu=_into(lambda gate, up: gelu_ggml(gate) * up),
    sigmoid_gate=_into(reference.sigmoid_gate_reference),
    softplus_gate=_into(reference.softplus_gate_reference),
    add_rms_norm=_add_and(reference.add_rms_norm_reference),
    add_layer_norm=_add_and(reference.add_layer_norm_reference),
    add_row=_in_place(np.add),
    multiply_row=_in_place(np.multiply),
    scale=_in_place(lambda x, factor: x * np.float32(factor)),
    scale_rows=_in_place(lambda x, factors: x * factors[:, None]),
    softcap=_in_place(reference.softcap_reference),
    gelu=_in_place(gelu_ggml),
    relu_squared=_in_place(reference.relu_squared_reference),
)


def plain_copy_part(
    x: np.ndarray, first: int, out: np.ndarray, at: int, n: int, *, swap: bool = False
) -> None:
    """Parts of the rows of heads, which latent attention copies on the CPU alone."""
    part = x[:, :, first : first + n]
    out[:, :, at : at + n] = part.swapaxes(0, 1) if swap else part


class Plain(Cpu):
    """The CPU with plain operations in place of the kernels that models use."""

    pointwise = POINTWISE
    recurrent = RECURRENT
    weight = staticmethod(PlainWeight.prepare)
    activations = PlainActivations
    linear = staticmethod(plain_linear)
    record = staticmethod(plain_record)
    get_rows = staticmethod(plain_get_rows)
    low_rank = staticmethod(lambda a, b: (a, b))
    low_rank_scratch = staticmethod(lambda _: None)
    add_low_rank = staticmethod(plain_add_low_rank)
    expert_matrix = staticmethod(PlainExperts.prepare)
    experts_scratch = staticmethod(lambda *_: None)
    experts = staticmethod(plain_experts)


def use_plain_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let weights be loaded for plain operations where no device is named."""
    from kvarn.models import weights

    monkeypatch.setattr(weights, "CPU", Plain())


class PlainAttention:
    """Keeps float32 keys and values of every layer and attends to them in float64."""

    graphs = None
    every_query = False

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.keys: list[Any] = [None] * config.n_layers
        self.values: list[Any] = [None] * config.n_layers
        self.sinks: Any = ()
        """Of a model that has some (`Weights.sink_logits`)."""
        self.states = [
            [np.zeros(shape, np.float32) for shape in layer] for layer in config.state_shapes
        ]

    def state(self, layer: int) -> list[np.ndarray]:
        return self.states[layer]

    def __call__(self, layer: int, q: np.ndarray, k: Any, v: Any, out: np.ndarray) -> None:
        layer, number = self.config.kv_numbers[layer], layer
        if k is not None:
            first = self.keys[layer] is None
            self.keys[layer] = k.copy() if first else np.concatenate([self.keys[layer], k])
            self.values[layer] = v.copy() if first else np.concatenate([self.values[layer], v])
        keys, values = self.keys[layer], self.values[layer]
        config = self.config.attention_layers[number]
        sinks = self.sinks[number] if config.sinks else None
        out[:] = attention_reference.attention_reference(
            q,
            keys,
            values,
            len(keys) - len(q),
            softmax=Softmax(config.attention_scale, config.attention_softcap, sinks),
            window=config.window,
        )


def greedy(
    model: Any, attention: PlainAttention, prompt: list[int], n: int, n_ctx: int
) -> tuple[list[int], np.ndarray]:
    """n greedy ids after the prompt, and the logits (n, V) they were chosen from."""
    step, start, ids, rows = prompt, 0, [], []
    attention.sinks = model.weights.sink_logits
    for _ in range(n):
        hidden = model.forward(np.array(step, np.int32), start, attention, n_ctx)
        out = np.empty((1, model.config.n_vocab), np.float32)
        model.logits(hidden[-1:], out)
        start += len(step)
        ids.append(int(out[0].argmax()))
        rows.append(out[0])
        step = ids[-1:]
    return ids, np.stack(rows)


def greedy_of(golden: Any) -> tuple[list[int], float]:
    """The greedy ids of a tiny model, and the largest error of their logits beside llama.cpp's, in
    units of the logits' standard deviation."""
    config = ModelConfig.from_metadata(golden.metadata)
    model = Transformer(config, Weights.load(as_tensors(golden.arrays), config), 64)
    n, n_ctx = len(golden.ids), golden.case.n_ctx
    ids, logits = greedy(model, PlainAttention(config), golden.prompt, n, n_ctx)
    return ids, np.abs(logits[golden.steps] - golden.logits).max() / golden.logits.std()


def read(
    model: Any, attention: PlainAttention, ids: list[int], chunk: int = 128, n_ctx: int = 256
) -> np.ndarray:
    """Logits (T, V) of ids read from an empty cache in chunks."""
    rows, attention.sinks = [], model.weights.sink_logits
    for start in range(0, len(ids), chunk):
        part = np.array(ids[start : start + chunk], np.int32)
        hidden = model.forward(part, start, attention, n_ctx)
        out = np.empty((len(part), model.config.n_vocab), np.float32)
        model.logits(hidden, out)
        rows.append(out)
    return np.concatenate(rows)
