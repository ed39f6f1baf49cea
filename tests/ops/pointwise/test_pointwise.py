"""Norms, rope and activations against float64 NumPy, at sizes that do not fill vectors."""

from collections.abc import Callable

import numpy as np
import pytest

from kvarn.ops import pointwise
from kvarn.ops.errors import OpsError
from kvarn.ops.reference import pointwise as reference

from ...thread_counts import with_threads

# Rows x columns: one element, less than a vector, a vector and one more, many threads' worth.
SHAPES = [(1, 1), (1, 8), (3, 172), (5, 17), (1, 2048), (40, 2049)]
RELATIVE = 1e-5


def _random(*shape: int, seed: int = 0, size: float = 3.0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    return (size * rng.standard_normal(shape)).astype(np.float32)


def _near(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=RELATIVE, atol=RELATIVE * np.abs(want).max())


@pytest.mark.parametrize("shape", SHAPES)
def test_norms(shape: tuple[int, int]) -> None:
    x, weight, bias = _random(*shape), _random(shape[1], seed=1), _random(shape[1], seed=2)
    out = np.empty_like(x)
    pointwise.rms_norm(x, weight, 1e-5, out)
    _near(out, reference.rms_norm_reference(x, weight, 1e-5))
    shifted = x + np.float32(20)  # a mean far from zero must not cost digits of the variance
    for b in (bias, None):
        pointwise.layer_norm(shifted, weight, b, 1e-3, out)
        want = reference.layer_norm_reference(shifted, weight, b, 1e-3)
        np.testing.assert_allclose(out, want, atol=2e-5 * max(1.0, np.abs(want).max()))


@pytest.mark.parametrize("shape", SHAPES)
def test_adding_a_branch_and_norming_is_both_in_turn(shape: tuple[int, int]) -> None:
    branch, weight, bias = _random(*shape, seed=3), _random(shape[1], seed=1), _random(shape[1])
    rms = (
        lambda x, out: pointwise.add_rms_norm(x, branch, weight, 1e-5, out),
        lambda x, out: pointwise.rms_norm(x, weight, 1e-5, out),
        reference.add_rms_norm_reference(_random(*shape), branch, weight, 1e-5),
    )
    layer = (
        lambda x, out: pointwise.add_layer_norm(x, branch, weight, bias, 1e-3, out),
        lambda x, out: pointwise.layer_norm(x, weight, bias, 1e-3, out),
        reference.add_layer_norm_reference(_random(*shape), branch, weight, bias, 1e-3),
    )
    for both, norm, (total, normed) in (rms, layer):
        x, out, expected = _random(*shape), np.empty_like(branch), np.empty_like(branch)
        both(x, out)
        np.testing.assert_array_equal(x, total)
        norm(x, expected)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_allclose(out, normed, atol=2e-5 * max(1.0, np.abs(normed).max()))


def test_norm_in_place_and_of_zeros() -> None:
    x, weight = _random(3, 50), _random(50, seed=1)
    want = reference.rms_norm_reference(x, weight, 1e-6)
    pointwise.rms_norm(x, weight, 1e-6, x)
    _near(x, want)
    zero = np.zeros((2, 20), np.float32)
    pointwise.rms_norm(zero, zero[0], 1e-6, zero)
    assert np.all(zero == 0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("op", "want"),
    [
        (pointwise.swiglu, reference.swiglu_reference),
        (pointwise.geglu, reference.geglu_reference),
        (pointwise.clamped_swiglu, reference.clamped_swiglu_reference),
        (pointwise.add, np.add),
        (pointwise.sigmoid_gate, reference.sigmoid_gate_reference),
        (pointwise.softplus_gate, reference.softplus_gate_reference),
    ],
)
def test_gates_and_sums(op: Callable, want: Callable, shape: tuple[int, int]) -> None:
    gate, up = _random(*shape), _random(*shape, seed=1)
    out = np.empty_like(gate)
    op(gate, up, out)
    _near(out, want(gate, up))
    expected = out.copy()
    op(gate, up, gate)
    np.testing.assert_array_equal(gate, expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_activations_in_place(shape: tuple[int, int]) -> None:
    x = _random(*shape)
    for op, want in (
        (pointwise.gelu, reference.gelu_reference),
        (pointwise.relu_squared, reference.relu_squared_reference),
    ):
        y = x.copy()
        op(y)
        _near(y, want(x))


def test_gates_far_out_are_0_or_the_input() -> None:
    x = np.array([[-1e4, -200.0, -90.0, -10.0, 0.0, 10.0, 90.0, 1e4]], np.float32)
    one, out = np.ones_like(x), np.empty_like(x)
    for op, want in (
        (pointwise.swiglu, reference.silu_reference),
        (pointwise.geglu, reference.gelu_reference),
    ):
        op(x, one, out)
        np.testing.assert_allclose(out, want(x), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize(("tokens", "heads", "n"), [(1, 1, 1), (3, 4, 80), (40, 2, 129)])
def test_pairs_are_split(tokens: int, heads: int, n: int) -> None:
    x = _random(tokens, heads, 2, n)
    halves = [np.empty((tokens, heads, n), np.float32) for _ in range(2)]
    pointwise.split_pairs(x, *halves)
    for i, half in enumerate(halves):
        np.testing.assert_array_equal(half, x[:, :, i])


@pytest.mark.parametrize("shape", SHAPES)
def test_scale_and_softcap_in_place(shape: tuple[int, int]) -> None:
    x = _random(*shape)
    y = x.copy()
    pointwise.scale(y, 0.3)
    _near(y, 0.3 * x.astype(np.float64))
    y = x.copy()
    pointwise.softcap(y, 2.5)
    np.testing.assert_allclose(y, reference.softcap_reference(x, 2.5), rtol=1e-6)


def test_tanh_is_good_to_its_last_digits() -> None:
    small = np.logspace(-30, 2, 4001).astype(np.float32)
    x = np.concatenate([small, -small, [0, 0.6249999, 0.625, 1e30, -1e30]]).astype(np.float32)
    y = x.copy()
    pointwise.softcap(y, 1.0)
    np.testing.assert_allclose(y, np.tanh(x.astype(np.float64)), rtol=3e-7)


@pytest.mark.parametrize("style", ["normal", "neox"])
@pytest.mark.parametrize(("head_dim", "n_rot"), [(8, 8), (64, 64), (80, 20), (80, 2), (128, 128)])
def test_rope(style: str, head_dim: int, n_rot: int) -> None:
    for n_tokens, heads in ((1, 3), (3, 1), (40, 9)):
        table = _random(n_tokens, n_rot, size=1)
        for k_heads in (0, 2):
            q, k = _random(n_tokens, heads, head_dim), _random(n_tokens, k_heads, head_dim, seed=1)
            before = [x.copy() for x in (q, k)]
            pointwise.rope(q, k, table, style)
            for got, x in zip((q, k), before):
                want = reference.rope_reference(x, table, style)
                np.testing.assert_allclose(got, want, atol=2e-6 * np.abs(want).max(initial=0))
                np.testing.assert_array_equal(got[..., n_rot:], x[..., n_rot:])


@pytest.mark.parametrize("shape", SHAPES)
def test_adding_and_multiplying_by_a_row_and_scaling_rows_in_place(shape: tuple[int, int]) -> None:
    x, row, factors = _random(*shape), _random(shape[1], seed=1), _random(shape[0], seed=2)
    total, product, scaled = x.copy(), x.copy(), x.copy()
    pointwise.multiply_row(product, row)
    np.testing.assert_array_equal(product, x * row)
    pointwise.add_row(total, row)
    pointwise.scale_rows(scaled, factors)
    np.testing.assert_array_equal(total, x + row)
    np.testing.assert_array_equal(scaled, x * factors[:, None])


def test_one_thread_gives_the_same_bits() -> None:
    x, table, weight = _random(41, 9, 120), _random(41, 100), _random(1080, seed=1)
    rows = x.reshape(41, 1080)
    results = []
    for _ in with_threads(1, 2):
        outs = [np.empty_like(rows) for _ in range(3)]
        pointwise.rms_norm(rows, weight, 1e-5, outs[0])
        pointwise.geglu(rows, rows, outs[1])
        total, turned = rows.copy(), x.copy()
        pointwise.add_rms_norm(total, rows, weight, 1e-5, outs[2])
        pointwise.rope(turned, turned[:, :4].copy(), table, "neox")
        results.append([*outs, total, turned])
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


def test_refuses_in_words() -> None:
    x, w = _random(2, 64), _random(64)
    heads = x.reshape(2, 8, 8)
    for words, call in {
        "weight is float32": lambda: pointwise.rms_norm(x, w[:32], 1e-5, x),
        "rows, columns": lambda: pointwise.rms_norm(w, w, 1e-5, w),
        "bias is": lambda: pointwise.layer_norm(x, w, w[:3], 1e-5, x),
        "float64": lambda: pointwise.add(x, x.astype(np.float64), x),
        "not contiguous": lambda: pointwise.swiglu(x, x, np.empty((2, 128), np.float32)[:, ::2]),
        "branch is": lambda: pointwise.add_rms_norm(x, x[:1], w, 1e-5, x),
        "even number up to 8": lambda: pointwise.rope(heads, heads, x, "neox"),
        "table is": lambda: pointwise.rope(heads, heads, x[:1, :8].copy(), "neox"),
        "tokens, heads": lambda: pointwise.rope(x, heads, x, "neox"),
        "k is": lambda: pointwise.rope(heads, heads[:1], x[:, :8].copy(), "neox"),
        "style": lambda: pointwise.rope(heads, heads, x[:, :8].copy(), "gpt"),
        "second operand is": lambda: pointwise.add_row(x, w[:3]),
        "heads, 2, elements": lambda: pointwise.split_pairs(heads, heads, heads),
        "second is": lambda: pointwise.split_pairs(
            x.reshape(2, 4, 2, 8), np.empty((2, 4, 8), np.float32), heads
        ),
        "cap is": lambda: pointwise.softcap(x, 0.0),
    }.items():
        with pytest.raises(OpsError, match=words):
            call()
