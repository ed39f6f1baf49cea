"""Products and rows on the GPU, against float64 products of what the reference decodes."""

import sys

import numpy as np
import pytest
import torch

from kvarn.cuda_ops.errors import CudaOpsError
from kvarn.cuda_ops.linear import Activations, Weight, get_rows, linear_many
from kvarn.cuda_ops.linear.formats import FORMATS
from kvarn.cuda_ops.linear.linear import shape_of
from kvarn.ops.reference.quants import dequantise
from kvarn.ops.types import QUANT_TYPES

TOLERANCE = 1e-6  # of sum |w x|: the same float32 products in another order
OF_HALVES = 2.0**-10  # x and w rounded to f16: each at most 2^-11 of itself
HALVES = {
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "Q4_1": (0, 2), "Q5_1": (0, 2), "MXFP4": (),
}  # fmt: skip
"""Where a block has floats, if not only at its beginning."""
SMALLEST = {name: max(QUANT_TYPES[name].block, 32) for name in FORMATS}


def _rows(name: str, n_rows: int, n_cols: int, seed: int = 0) -> np.ndarray:
    """Random bytes with finite scales: uint8 (n_rows, row_bytes)."""
    rng, quant = np.random.default_rng(n_rows + n_cols + seed), QUANT_TYPES[name]
    if quant.block == 1:
        values = rng.standard_normal((n_rows, n_cols)).astype(np.float32)
        if name == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype({"F32": np.float32, "F16": np.float16}[name]).view(np.uint8)
    shape = n_rows, n_cols // quant.block
    blocks = rng.integers(0, 256, (*shape, quant.n_bytes), np.uint8)
    for at in HALVES.get(name, (0,)):
        halves = rng.standard_normal((*shape, 1)).astype(np.float16)
        blocks[..., at : at + 2] = halves.view(np.uint8)
    if name == "MXFP4":
        blocks[..., 0] = rng.integers(120, 136, shape)
    return blocks.reshape(n_rows, -1)


def _weight(device, name: str, n_rows: int, n_cols: int, seed: int = 0):
    rows = _rows(name, n_rows, n_cols, seed)
    weight = Weight.prepare(QUANT_TYPES[name], torch.tensor(rows), n_cols, device, name)
    return weight, dequantise(QUANT_TYPES[name], rows).astype(np.float64)


def _x(device, n_tokens: int, n_cols: int) -> torch.Tensor:
    """Random vectors, before and behind which memory is NaN: what is read there shows."""
    x = np.random.default_rng(n_tokens).standard_normal((n_tokens, n_cols), np.float32)
    memory = torch.full((x.size + 1024,), torch.nan, device=device)
    memory[512:-512] = torch.tensor(x.ravel(), device=device)
    return memory[512:-512].view(n_tokens, n_cols)


def _close(got: torch.Tensor, w: np.ndarray, x: torch.Tensor, bound: float) -> None:
    wide = x.cpu().numpy().astype(np.float64)
    most = np.abs(wide) @ np.abs(w.T)
    assert (np.abs(got.cpu().numpy() - wide @ w.T) <= bound * most).all()


@pytest.mark.parametrize("n_tokens", [1, 2, 8])
@pytest.mark.parametrize("name", FORMATS)
def test_products_of_every_type(device, name, n_tokens) -> None:
    """A row more than a tile, an odd number of blocks; out keeps what lies around it."""
    n_cols = 3 * SMALLEST[name]
    n_rows = shape_of(FORMATS[name], n_tokens)[0] + 1
    weight, w = _weight(device, name, n_rows, n_cols)
    x, around = _x(device, n_tokens, n_cols), torch.full((n_tokens + 2, n_rows), 7.0, device=device)
    out = around[1:-1]
    linear_many(Activations(8, n_cols).set(x), (weight,), (out,))
    _close(out, w, x, TOLERANCE)
    assert (around[0] == 7).all() and (around[-1] == 7).all()


@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q4_0", "Q5_0", "Q6_K"])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_products_around_a_tile(device, name, more) -> None:
    """Rows and columns at, before and behind the end of a program's tile."""
    rows, steps = shape_of(FORMATS[name], 1)
    n_cols = steps * FORMATS[name].step + more * SMALLEST[name]
    weight, w = _weight(device, name, rows + more, n_cols)
    x, out = _x(device, 1, n_cols), torch.empty((1, rows + more), device=device)
    linear_many(Activations(1, n_cols).set(x), (weight,), (out,))
    _close(out, w, x, TOLERANCE)


@pytest.mark.parametrize("name", FORMATS)
def test_the_smallest_matrix(device, name) -> None:
    weight, w = _weight(device, name, 1, SMALLEST[name])
    x, out = _x(device, 1, weight.n_cols), torch.empty((1, 1), device=device)
    linear_many(Activations(1, weight.n_cols).set(x), (weight,), (out,))
    _close(out, w, x, TOLERANCE)


@pytest.mark.parametrize("name", FORMATS)
def test_products_of_many_tokens_are_of_halves(device, name) -> None:
    weight, w = _weight(device, name, 5, 3 * SMALLEST[name])
    x, out = _x(device, 9, weight.n_cols), torch.empty((9, 5), device=device)
    x *= 10.0 ** torch.arange(-4, 5, device=device)[:, None]  # to 4e4: beyond f16 when multiplied
    linear_many(Activations(9, weight.n_cols).set(x), (weight,), (out,))
    _close(out, w, x, OF_HALVES)


@pytest.mark.parametrize("name", ["F16", "Q4_K"])
def test_many_tokens_by_tiles_of_rows(device, name, monkeypatch) -> None:
    module = sys.modules[shape_of.__module__]  # whose name in its package is the function
    monkeypatch.setattr(module, "SCRATCH_WEIGHTS", 1024)
    weight, w = _weight(device, name, 9, 256)
    x, out = _x(device, 9, 256), torch.empty((9, 9), device=device)
    linear_many(Activations(9, 256).set(x), (weight,), (out,))
    _close(out, w, x, OF_HALVES)


@pytest.mark.parametrize("n_tokens", [1, 3])
@pytest.mark.parametrize("types", [("Q4_K", "Q4_K", "Q6_K"), ("Q6_K", "Q5_K", "Q4_K")])
def test_matrices_of_several_types_in_one_launch(device, types, n_tokens) -> None:
    """q, k, v as Q4_K_M has them, and with tiles of other rows; outs are parts of one buffer."""
    made = [_weight(device, name, n, 512, n) for name, n in zip(types, (9, 3, 3), strict=True)]
    x, buffer = _x(device, n_tokens, 512), torch.full((n_tokens, 16), 7.0, device=device)
    outs = [buffer[:, :9], buffer[:, 9:12], buffer[:, 12:15]]
    linear_many(Activations(8, 512).set(x), [weight for weight, _ in made], outs)
    for out, (_, w) in zip(outs, made, strict=True):
        _close(out, w, x, TOLERANCE)
    assert (buffer[:, 15] == 7).all()


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_what_the_file_says(device, name) -> None:
    weight, w = _weight(device, name, 6, 3 * SMALLEST[name])
    ids = torch.tensor([5, 0, 3, 3, 6, -1], dtype=torch.int32, device=device)
    out = torch.zeros((6, weight.n_cols), device=device)
    get_rows(weight, ids, out)
    got = out.cpu().numpy()
    np.testing.assert_allclose(got[:4], w[[5, 0, 3, 3]], rtol=1e-6, atol=1e-6 * np.abs(w).max())
    assert np.isnan(got[4:]).all()


def test_the_two_smallest_scales_of_mxfp4_are_subnormal(device) -> None:
    rows = _rows("MXFP4", 1, 128)
    rows[0, ::17] = (0, 1, 2, 3)
    weight = Weight.prepare(QUANT_TYPES["MXFP4"], torch.tensor(rows), 128, device)
    out = torch.zeros((1, 128), device=device)
    get_rows(weight, torch.zeros(1, dtype=torch.int32, device=device), out)
    np.testing.assert_array_equal(out.cpu().numpy(), dequantise(QUANT_TYPES["MXFP4"], rows))


@pytest.mark.parametrize(
    ("name", "bits"), [("Q8_0", 8.5), ("Q4_0", 4.5), ("Q4_K", 4.625), ("Q6_K", 6.5625)]
)
def test_planes_have_the_size_that_a_product_reads(device, name, bits) -> None:
    weight, _ = _weight(device, name, 3, 512)
    planes = {plane.data_ptr(): plane.numel() * plane.element_size() for plane in weight.planes[:4]}
    assert sum(planes.values()) == weight.n_bytes == 3 * 512 * bits / 8


def test_refuses_in_words(device) -> None:
    rows = torch.zeros((4, 144), dtype=torch.uint8)
    with pytest.raises(CudaOpsError, match="no GPU kernel"):
        Weight.prepare(QUANT_TYPES["IQ2_S"], rows, 256, device)
    with pytest.raises(CudaOpsError, match=r"expected uint8 \(N, 288\)"):
        Weight.prepare(QUANT_TYPES["Q4_K"], rows, 512, device)
    weight = Weight.prepare(QUANT_TYPES["Q4_K"], rows, 256, device, "w")
    act = Activations(2, 256)
    with pytest.raises(CudaOpsError, match="1 <= T <= 2"):
        act.set(torch.zeros((3, 256), device=device))
    with pytest.raises(CudaOpsError, match="float64"):
        act.set(torch.zeros((1, 256), dtype=torch.float64, device=device))
    act.set(torch.zeros((1, 256), device=device))
    with pytest.raises(CudaOpsError, match="multiplying by w"):
        linear_many(act, (weight,), (torch.zeros((1, 5), device=device),))
    with pytest.raises(CudaOpsError, match="found out of"):
        out = torch.zeros((1, 4), dtype=torch.float16, device=device)
        linear_many(act, (weight,), (out,))
    with pytest.raises(CudaOpsError, match="found ids"):
        get_rows(weight, torch.zeros(1, device=device), torch.zeros((1, 256), device=device))
    with pytest.raises(CudaOpsError, match="at least 1 of 1"):
        Activations(0, 256)
