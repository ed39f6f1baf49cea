"""Pointwise operations on the GPU, against NumPy in float64."""

import numpy as np
import pytest
import torch

from kvarn.cuda_ops import pointwise as ops
from kvarn.cuda_ops.errors import CudaOpsError
from kvarn.ops.reference import pointwise as reference

EPS = 1e-5
SHAPES = [(1, 1), (3, 5), (2, 63), (1, 64), (5, 65), (1, 1023), (1, 1025)]


@pytest.fixture
def draw(device):
    rng = np.random.default_rng(3)

    def make(*shape: int, scale: float = 1.0) -> tuple[np.ndarray, torch.Tensor]:
        x = (scale * rng.standard_normal(shape)).astype(np.float32)
        return x, torch.tensor(x, device=device)

    return make


def _close(got: torch.Tensor, want: np.ndarray, bound: float = 2e-6) -> None:
    np.testing.assert_allclose(got.cpu().numpy(), want, rtol=bound, atol=bound)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("norm", ["rms", "layer", "layer without bias"])
def test_norms(draw, shape, adds, norm) -> None:
    (x, tx), (branch, tb) = draw(*shape), draw(*shape)
    (weight, tw), (bias, tbias) = draw(shape[1]), draw(shape[1])
    out, total = torch.empty_like(tx), x + branch if adds else x
    if norm == "rms":
        want = reference.rms_norm_reference(total, weight, EPS)
        _ = ops.add_rms_norm(tx, tb, tw, EPS, out) if adds else ops.rms_norm(tx, tw, EPS, out)
    else:
        has = norm == "layer"
        want = reference.layer_norm_reference(total, weight, bias if has else None, EPS)
        last = tw, tbias if has else None, EPS, out
        _ = ops.add_layer_norm(tx, tb, *last) if adds else ops.layer_norm(tx, *last)
    _close(out, want, 1e-5)
    _close(tx, total, 0)


@pytest.mark.parametrize("style", ["normal", "neox"])
@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "head_dim", "n_rot"),
    [(1, 1, 1, 2, 2), (3, 4, 1, 64, 64), (2, 9, 3, 80, 32), (2, 1, 1, 96, 96), (1, 5, 2, 8, 0)],
)
def test_rope(draw, style, tokens, heads, kv_heads, head_dim, n_rot) -> None:
    (q, tq), (k, tk) = draw(tokens, heads, head_dim), draw(tokens, kv_heads, head_dim)
    table, ttable = draw(tokens, n_rot)
    ops.rope(tq, tk, ttable, style)
    _close(tq, reference.rope_reference(q, table, style))
    _close(tk, reference.rope_reference(k, table, style))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["swiglu", "geglu"])
def test_gates(draw, shape, name) -> None:
    (gate, tgate), (up, tup) = draw(*shape, scale=4.0), draw(*shape)
    gate[0, 0] = tgate[0, 0] = -200.0  # whose exponential is infinite
    getattr(ops, name)(tgate, tup, tgate)
    _close(tgate, getattr(reference, f"{name}_reference")(gate, up), 5e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["sigmoid_gate", "softplus_gate"])
def test_gates_of_outputs(draw, name, shape) -> None:
    (x, tx), (gate, tgate) = draw(*shape), draw(*shape, scale=4.0)
    gate[0, 0] = tgate[0, 0] = -200.0  # whose exponential is infinite
    getattr(ops, name)(tx, tgate, tx)
    _close(tx, getattr(reference, f"{name}_reference")(x, gate), 5e-6)


def test_pairs_are_split(draw) -> None:
    x, tx = draw(3, 2, 2, 5)
    halves = [torch.empty((3, 2, 5), device=tx.device) for _ in range(2)]
    ops.split_pairs(tx, *halves)
    for i, half in enumerate(halves):
        _close(half, x[:, :, i], 0)
    with pytest.raises(CudaOpsError, match="heads, 2, elements"):
        ops.split_pairs(tx[0], *halves)
    with pytest.raises(CudaOpsError, match="half is"):
        ops.split_pairs(tx, halves[0][:1], halves[1])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["gelu", "relu_squared"])
def test_activations(draw, shape, name) -> None:
    x, tx = draw(*shape, scale=4.0)
    getattr(ops, name)(tx)
    _close(tx, getattr(reference, f"{name}_reference")(x), 5e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_and_factors(draw, shape) -> None:
    (x, tx), (y, ty) = draw(*shape), draw(*shape)
    out = torch.empty_like(tx)
    ops.add(tx, ty, out)
    _close(out, x + y, 0)
    row, factors = draw(shape[1]), draw(shape[0])
    ops.add_row(out, row[1])
    ops.scale_rows(out, factors[1])
    ops.scale(out, 0.3)
    ops.multiply_row(out, row[1])
    want = (x + y + row[0]) * factors[0][:, None] * np.float32(0.3) * row[0]
    _close(out, want)


@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_softcap(draw, cap) -> None:
    x, tx = draw(1, 1025, scale=cap)
    x[0, :3] = (0.0, 1e30, -1e30)
    tx[0, :3] = torch.tensor(x[0, :3])
    ops.softcap(tx, cap)
    _close(tx, reference.softcap_reference(x, cap))


def test_refuses_in_words(device) -> None:
    x, row = torch.zeros((2, 4), device=device), torch.zeros(4, device=device)
    with pytest.raises(CudaOpsError, match="rms_norm: weight is"):
        ops.rms_norm(x, torch.zeros(3, device=device), EPS, x)
    with pytest.raises(CudaOpsError, match="not contiguous"):
        ops.rms_norm(x.T, row[:2], EPS, x.T)
    with pytest.raises(CudaOpsError, match="swiglu: second operand"):
        ops.swiglu(x, row, x)
    with pytest.raises(CudaOpsError, match="positive number"):
        ops.softcap(x, 0.0)
    q = torch.zeros((1, 2, 4), device=device)
    with pytest.raises(CudaOpsError, match="'normal' or 'neox'"):
        ops.rope(q, q, x[:1], "glm")
    with pytest.raises(CudaOpsError, match="even number up to 4"):
        ops.rope(q, q, torch.zeros((1, 6), device=device), "neox")
    with pytest.raises(CudaOpsError, match="rows, columns"):
        ops.add_row(row, row)
