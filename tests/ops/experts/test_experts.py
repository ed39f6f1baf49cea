"""Experts of every type against float64 arithmetic, expert by expert and token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.jit.launch import record
from kvarn.ops.errors import OpsError
from kvarn.ops.experts import ExpertMatrix, ExpertWeights, Routing
from kvarn.ops.experts.api import ExpertsScratch, experts
from kvarn.ops.experts.weights import UNGATED
from kvarn.ops.linear import Activations
from kvarn.ops.reference.experts import expert_reference, route_reference
from kvarn.ops.reference.quants import dequantise
from kvarn.ops.types import QUANT_TYPES

from ...thread_counts import with_threads

TYPES = [name for name, t in QUANT_TYPES.items() if t.treatment in ("native", "repacked")]
ROUTING = Routing(5, 2, normalised=True)
ACTIVATIONS = ("silu", "gelu", "clamped-silu")
SIZES = {1: (33, 18), 32: (96, 160), 256: (256, 512)}  # of D and F, by blocks
N_TOKENS = (1, 3, 4, 5, 8, 33, 64)
NEVER = 3
"""An expert that no token chooses."""


class Layer:
    """Random experts: their rows as in a file, prepared, and what they should give."""

    def __init__(
        self,
        rows: Callable[..., np.ndarray],
        type_names: tuple[str, str, str],
        activation: Any = "silu",
        n_embd: int = 0,
        n_ff: int = 0,
        routing: Routing = ROUTING,
        **biases: np.ndarray,
    ) -> None:
        types = [QUANT_TYPES[name] for name in type_names]
        sizes = SIZES[max(t.block for t in types)]
        self.n_embd, self.n_ff = n_embd or sizes[0], n_ff or sizes[1]
        self.routing, self.activation, self.biases = routing, activation, biases
        shapes = (self.n_ff, self.n_embd), (self.n_ff, self.n_embd), (self.n_embd, self.n_ff)
        n = routing.n_experts
        self.matrices, self.floats = [], []
        for seed, (t, (n_rows, n_cols)) in enumerate(zip(types, shapes)):
            data = rows(t.name, n * n_rows, n_cols, seed).reshape(n, n_rows, -1)
            self.matrices.append((t, data))
            self.floats.append(dequantise(t, data).astype(np.float64))
        prepared = [
            ExpertMatrix.prepare(t, data, n_cols, f"{part}_exps")
            for part, (t, data), (_, n_cols) in zip(("gate", "up", "down"), self.matrices, shapes)
        ]
        if activation in UNGATED:
            prepared[0] = None
        self.weights = ExpertWeights(routing, activation, *prepared, **biases)

    def scratch(self, max_rows: int) -> ExpertsScratch:
        return ExpertsScratch(self.routing, self.n_embd, self.n_ff, max_rows)

    def inputs(self, n_tokens: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([seed, n_tokens])
        x = rng.normal(size=(n_tokens, self.n_embd)).astype(np.float32)
        logits = rng.normal(size=(n_tokens, self.routing.n_experts)).astype(np.float32)
        if self.routing.n_used + 1 < self.routing.n_experts:
            logits[:, NEVER] = -20
        return x, logits

    def run(self, x: np.ndarray, logits: np.ndarray, **options: bool) -> np.ndarray:
        out = np.full((len(x), self.n_embd), np.nan, np.float32)
        act = Activations(len(x), self.n_embd).set(x)
        experts(act, logits.copy(), self.weights, self.scratch(len(x)), out, **options)
        return out

    def expected(self, x: np.ndarray, logits: np.ndarray, rounded: bool) -> np.ndarray:
        out = np.zeros((len(x), self.n_embd))
        names = "gate_bias", "up_bias", "down_bias"
        for t, row in enumerate(x):
            for e, weight in zip(*route_reference(logits[t], self.routing)):
                matrices = [
                    (kind, floats[e]) for (kind, _), floats in zip(self.matrices, self.floats)
                ]
                biases: Any = tuple(self.biases[n][e] if n in self.biases else 0 for n in names)
                y = expert_reference(row, matrices, self.activation, biases, rounded)
                out[t] += weight * y
        return out

    def check(self, n_tokens: int, **options: bool) -> None:
        x, logits = self.inputs(n_tokens)
        out = self.run(x, logits, **options)
        same, exact = (self.expected(x, logits, rounded) for rounded in (True, False))
        # Numbers that lie between two codes may be rounded to either, by float32 or by float64:
        # then the result differs by a small part of what int8 costs.
        size = np.sqrt(np.mean(exact**2))
        error, allowed = (np.sqrt(np.mean((y - exact) ** 2)) for y in (out, same))
        assert np.sqrt(np.mean((out - same) ** 2)) <= 0.1 * allowed + 2e-6 * size
        assert error <= 1.1 * allowed + 2e-6 * size


@pytest.mark.parametrize("type_name", TYPES)
def test_every_type_gives_what_its_numbers_give(
    type_name: str, random_rows: Callable[..., np.ndarray]
) -> None:
    activation = ACTIVATIONS[TYPES.index(type_name) % 3]
    layer = Layer(random_rows, (type_name,) * 3, activation)
    for n_tokens in N_TOKENS:
        layer.check(n_tokens)


@pytest.mark.parametrize("activation", [*ACTIVATIONS, *UNGATED])
@pytest.mark.parametrize("types", [("F32", "F32", "F32"), ("Q4_K", "Q6_K", "Q8_0")])
def test_biases_activations_and_mixed_types(
    activation: str, types: tuple[str, str, str], random_rows: Callable[..., np.ndarray]
) -> None:
    n, n_embd, n_ff = 5, 256, 96
    rng = np.random.default_rng(3)
    shapes = {"gate_bias": (n, n_ff), "up_bias": (n, n_ff), "down_bias": (n, n_embd)}
    biases = {k: 3 * rng.normal(size=shape).astype(np.float32) for k, shape in shapes.items()}
    if activation in UNGATED:
        del biases["gate_bias"]
    layer = Layer(random_rows, types, activation, n_embd, n_ff, **biases)
    for n_tokens in (1, 4, 9):
        layer.check(n_tokens)


@pytest.mark.parametrize("routing", [Routing(1, 1), Routing(4, 4), Routing(32, 3, "sigmoid")])
def test_one_expert_all_experts_and_many(
    routing: Routing, random_rows: Callable[..., np.ndarray]
) -> None:
    layer = Layer(random_rows, ("Q4_0",) * 3, routing=routing)
    for n_tokens in (1, 5, 70):
        layer.check(n_tokens)


@pytest.mark.parametrize("type_name", ["F16", "Q8_0", "Q4_K"])
def test_any_split_of_a_prompt_gives_the_same_bits(
    type_name: str, random_rows: Callable[..., np.ndarray]
) -> None:
    """Down to single tokens, where `prompt` says that they are a prompt's."""
    layer = Layer(random_rows, (type_name,) * 3)
    x, logits = layer.inputs(37)
    whole = layer.run(x, logits)
    for size in (1, 2, 4, 5, 8, 13, 36):
        parts = [slice(first, first + size) for first in range(0, 37, size)]
        outs = [layer.run(x[part], logits[part], prompt=True) for part in parts]
        np.testing.assert_array_equal(np.concatenate(outs), whole)


@pytest.mark.parametrize("type_name", ["F32", "Q4_0", "Q6_K"])
def test_a_few_tokens_have_the_bits_of_single_ones(
    type_name: str, random_rows: Callable[..., np.ndarray]
) -> None:
    layer = Layer(random_rows, (type_name,) * 3)
    x, logits = layer.inputs(4)
    ones = [layer.run(x[t : t + 1], logits[t : t + 1]) for t in range(4)]
    for n_tokens in (2, 3, 4):
        few = layer.run(x[:n_tokens], logits[:n_tokens])
        np.testing.assert_array_equal(few, np.concatenate(ones[:n_tokens]))


@pytest.mark.parametrize("type_name", ["BF16", "Q5_K", "MXFP4"])
def test_any_number_of_threads_gives_the_same_bits(
    type_name: str, random_rows: Callable[..., np.ndarray]
) -> None:
    n_ff = 18 if type_name == "BF16" else 1024 if type_name == "Q5_K" else 1120
    layer, results = Layer(random_rows, (type_name,) * 3, n_ff=n_ff), []
    for _ in with_threads(*range(1, threads.max_threads() + 1)):
        results.append([layer.run(*layer.inputs(t)) for t in (1, 3, 9, 40)])
    for others in results[1:]:
        for other, first in zip(others, results[0]):
            np.testing.assert_array_equal(other, first)
    for n_tokens in (1, 9):
        layer.check(n_tokens)


@pytest.mark.parametrize("type_name", ["Q8_0", "F32"])
def test_a_recorded_token_chooses_when_it_runs(
    type_name: str, random_rows: Callable[..., np.ndarray]
) -> None:
    layer = Layer(random_rows, (type_name,) * 3)
    x, logits = (np.zeros((1, n), np.float32) for n in (layer.n_embd, layer.routing.n_experts))
    out, scratch = np.empty((1, layer.n_embd), np.float32), layer.scratch(1)
    act = Activations(1, layer.n_embd)
    graph = record(lambda: experts(act.set(x), logits, layer.weights, scratch, out))
    chosen = set()
    for seed in range(6):
        x[:], logits[:] = layer.inputs(1, seed)
        expected = layer.run(x, logits)
        graph.run()
        np.testing.assert_array_equal(out, expected)
        chosen.add(tuple(scratch.pairs.ids[0].tolist()))
    assert len(chosen) > 1
    assert NEVER not in np.ravel(list(chosen))


def test_halves_of_a_fused_tensor_are_gate_and_up(random_rows: Callable[..., np.ndarray]) -> None:
    layer = Layer(random_rows, ("Q8_0",) * 3)
    (kind, gate), (_, up), _ = layer.matrices
    both = np.concatenate([gate, up], axis=1)
    fused = ExpertMatrix.prepare(kind, both, layer.n_embd, "gate_up_exps")
    halves = dict(zip(("gate", "up"), fused.halves()))
    assert [part.n_bytes for part in halves.values()] == [gate.nbytes, up.nbytes]
    inputs = layer.inputs(9), layer.inputs(2)
    separate = [layer.run(*pair) for pair in inputs]
    layer.weights = replace(layer.weights, **halves)
    for pair, expected in zip(inputs, separate):
        np.testing.assert_array_equal(layer.run(*pair), expected)
    odd = ExpertMatrix.prepare(kind, both[:, :3], layer.n_embd, "gate_up_exps")
    with pytest.raises(OpsError, match="gate_up_exps: found 3 rows, expected an even number"):
        odd.halves()


def test_bytes_stay_where_they_are_and_others_are_re_encoded(
    random_rows: Callable[..., np.ndarray],
) -> None:
    layer = Layer(random_rows, ("MXFP4",) * 3)
    assert not layer.weights.gate.is_copy
    assert np.shares_memory(layer.weights.gate.weight.data, layer.matrices[0][1])
    each = sum(data.nbytes for _, data in layer.matrices) // 5
    assert layer.weights.bytes_per_token == 2 * each
    rows = random_rows("IQ3_S", 10, 256).reshape(5, 2, -1)
    other = ExpertMatrix.prepare(QUANT_TYPES["IQ3_S"], rows, 256)
    assert (other.is_copy, other.weight.stored_type.name) == (True, "Q8_0")
    assert other.stacked.expert_bytes == 2 * 256 // 32 * 34


def test_what_does_not_fit_is_refused(random_rows: Callable[..., np.ndarray]) -> None:
    layer = Layer(random_rows, ("Q8_0",) * 3)
    q8_0, weights = QUANT_TYPES["Q8_0"], layer.weights
    x, logits = layer.inputs(2)
    act, out = Activations(2, layer.n_embd).set(x), np.empty_like(x)
    scratch = layer.scratch(2)
    four = ExpertMatrix.prepare(q8_0, layer.matrices[0][1][:4], layer.n_embd, "gate_exps")
    bias = np.zeros((5, 3), np.float32)
    calls = {
        "expected .experts, rows, bytes": lambda: ExpertMatrix.prepare(q8_0, x.view(np.uint8), 96),
        "found uint8 of shape": lambda: ExpertMatrix.prepare(q8_0, layer.matrices[0][1], 64),
        r"gate_exps: found shape \(4, 160, 96\)": lambda: replace(weights, gate=four),
        "down_exps: found shape": lambda: replace(weights, up=weights.down),
        r"gate_bias: found shape \(5, 3\)": lambda: replace(weights, gate_bias=bias),
        "found 2 tokens": lambda: experts(act, logits, weights, layer.scratch(1), out),
        "found logits": lambda: experts(act, logits[:1], weights, scratch, out),
        "found out": lambda: experts(act, logits, weights, scratch, out[:, :3]),
        "as the scratch memory": lambda: experts(
            act, logits, weights, ExpertsScratch(Routing(5, 2), 96, 160, 2), out
        ),
    }
    calls["found no gates for silu"] = lambda: replace(weights, gate=None)
    calls["found gates for relu-squared"] = lambda: replace(weights, activation="relu-squared")
    for words, call in calls.items():
        with pytest.raises(OpsError, match=words):
            call()
