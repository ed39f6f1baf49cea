"""Products of one token on this GPU: `python -m lab.gpu.products`.

For each type and shape: what the memory allows, the tile that kvarn takes, the fastest tiles, and
of Q4_0 a kernel of integers. There are more copies of a matrix than the L2 cache holds.

The integers: x = s (256^(p-1) x_0 + … + x_(p-1)) of int8 planes, s for 32 numbers, and `dp4a`,
which multiplies four codes by four of them. It is no part of kvarn yet: activations would have to
be quantised once for each product.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from kvarn.cuda_ops.device import CudaDevice
from kvarn.cuda_ops.linear import Weight
from kvarn.cuda_ops.linear.kernels import Vectors, magic, product_kernel
from kvarn.cuda_ops.linear.linear import tile_of
from kvarn.ops.arrays import U8
from kvarn.ops.types import QUANT_TYPES, row_bytes
from kvarn.system.terminal import show

SHAPES = ((2048, 2048), (8192, 2048), (2048, 8192), (4096, 4096), (14336, 4096), (4096, 14336))
TYPES = ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "F16")
TILES = tuple(product((1, 2, 4, 8), (1, 2, 4)))
"""Rows and warps of a program."""
BYTES = 160 << 20
"""Of all copies of a matrix."""
_SCALES = {"Q4_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
"""Where blocks have f16 numbers."""


@triton.jit
def _dp4a(codes, x, total):
    """total + the products of four unsigned bytes and four signed ones."""
    return tl.inline_asm_elementwise(
        "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [codes, x, total], dtype=tl.int32,
        is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def integer_kernel(
    x, scales, centres, codes, heads, out, n_rows, n_steps, PLANES: tl.constexpr,
    ROWS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """out (n_rows,) for Q4_0: x int32 (PLANES, 2, n_steps, 4); scales, centres (n_steps,)."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = tl.minimum(r, n_rows - 1).to(tl.int64)
    j = tl.arange(0, 4)
    total = tl.zeros((ROWS, STEPS), tl.float32)
    for first in range(0, n_steps, STEPS):
        step = first + tl.arange(0, STEPS)
        here = step < n_steps
        at = (row * (4 * n_steps))[:, None, None] + (4 * step)[None, :, None] + j[None, None, :]
        words = tl.load(codes + at, here[None, :, None], 0)
        low, high = words & 0x0F0F0F0F, (words >> 4) & 0x0F0F0F0F
        value = tl.zeros((ROWS, STEPS), tl.float32)
        for plane in tl.static_range(PLANES):
            at = x + (2 * plane * n_steps + step)[:, None] * 4 + j[None, :]
            a, _ = tl.broadcast(tl.load(at, here[:, None], 0)[None], low)
            b, _ = tl.broadcast(tl.load(at + 4 * n_steps, here[:, None], 0)[None], low)
            products = _dp4a(low, a, tl.zeros((ROWS, STEPS, 4), tl.int32))
            products = _dp4a(high, b, products)
            value = value * 256.0 + tl.sum(products, 2).to(tl.float32)
        d = tl.load(heads + (row * n_steps)[:, None] + step[None, :], here[None, :], 0)
        scale, centre = tl.load(scales + step, here, 0.0), tl.load(centres + step, here, 0.0)
        total += d.to(tl.float32) * (value * scale[None, :] - centre[None, :])
    tl.store(out + r, tl.sum(total, 1), r < n_rows)


def quantised(x: torch.Tensor, planes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x (n,) as the arguments x, scales and centres of `integer_kernel`."""
    blocks = x.view(-1, 32).double()
    most = 127 * 256 ** (planes - 1) - (256 ** (planes - 1)) // 2
    scale = blocks.abs().amax(1, keepdim=True).clamp_min(1e-30) / most
    left = torch.round(blocks / scale).long()
    centres = 8.0 * (left.sum(1, keepdim=True) * scale)
    out = torch.empty((planes, 2, len(blocks), 4), dtype=torch.int32, device=x.device)
    for plane in reversed(range(planes)):  # the lowest first, so that each digit is -128 .. 127
        digit = (left + 128) % 256 - 128
        left = (left - digit) // 256
        of_words = digit.to(torch.int8).view(-1, 8, 4)  # number 4 f + j: field f of word j
        for half in range(2):
            fields = of_words[:, half::2].transpose(1, 2).contiguous()
            out[plane, half] = fields.view(torch.int32).view(-1, 4)
    return out, scale.float().view(-1), centres.float().view(-1)


def multiply(weight: Weight, x: torch.Tensor, out: torch.Tensor, rows: int, warps: int) -> None:
    """kvarn's kernel with a tile of so many rows."""
    product_kernel[(triton.cdiv(weight.n_rows, rows), 1)](
        Vectors(x, weight.n_cols, 1), (weight.planes,), (out,), (weight.n_rows,), (out.stride(0),),
        magic(x.device), FORMATS=(weight.format,), SHAPES=((rows, 32 * warps),), TOKENS=1,
        num_warps=warps,
    )  # fmt: skip


def multiply_integers(
    weight: Weight, x: tuple[torch.Tensor, ...], out: torch.Tensor, rows: int, warps: int
) -> None:
    """The same by integers."""
    integer_kernel[(triton.cdiv(weight.n_rows, rows),)](
        *x, weight.planes.codes, weight.planes.heads, out, weight.n_rows, weight.n_cols // 32,
        PLANES=len(x[0]), ROWS=rows, STEPS=32 * warps, num_warps=warps,
    )  # fmt: skip


def random_rows(name: str, n_rows: int, n_cols: int) -> U8:
    """A file's rows of random codes whose scales are 0.01, or of floats."""
    rng, quant = np.random.default_rng(0), QUANT_TYPES[name]
    if name == "F16":
        floats = (0.02 * rng.standard_normal((n_rows, n_cols))).astype(np.float16)
        return floats.view(np.uint8)
    data: U8 = rng.integers(0, 256, (n_rows, row_bytes(quant, n_cols)), dtype=np.uint8)
    for at in _SCALES[name]:
        data.reshape(-1, quant.n_bytes)[:, at : at + 2] = np.array([0.01], np.float16).view(
            np.uint8
        )
    return data


def copies(weight: Weight) -> list[Weight]:
    """The matrix so often that the L2 cache does not hold all."""
    n = max(2, BYTES // weight.n_bytes)
    planes = weight.planes
    return [replace(weight, planes=type(planes)(*(p.clone() for p in planes))) for _ in range(n)]


def microseconds(call: Callable[[Weight], None], weights: list[Weight]) -> float:
    """Of one call: the best of four replays of a graph over all copies."""
    call(weights[0])
    torch.cuda.synchronize()
    graph, best = torch.cuda.CUDAGraph(), float("inf")
    with torch.cuda.graph(graph):
        for weight in weights:
            call(weight)
    for _ in range(5):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        best = min(best, first.elapsed_time(last))
    return best * 1e3 / len(weights)


def bytes_per_microsecond() -> float:
    """What the memory moves: a copy of 1 GiB, counted in both directions."""
    data = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    out = torch.empty_like(data)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    out.copy_(data)
    first.record()
    for _ in range(8):
        out.copy_(data)
    last.record()
    torch.cuda.synchronize()
    return 16 * data.numel() / (first.elapsed_time(last) * 1e3)


def rows_of(device: CudaDevice, name: str, shape: tuple[int, int], speed: float) -> Iterator[str]:
    """What is told of a type and a shape."""
    weight = device.weight(QUANT_TYPES[name], random_rows(name, *shape), shape[1], name)
    weights, x = copies(weight), torch.randn(1, shape[1], device="cuda")
    out = torch.empty(1, shape[0], device="cuda")

    def timed(call: Callable[..., None], given: Any) -> list[tuple[float, tuple[int, int]]]:
        def once(weight: Weight, tile: tuple[int, int]) -> None:
            call(weight, given, out, *tile)

        return sorted((microseconds(partial(once, tile=tile), weights), tile) for tile in TILES)

    tiles = timed(multiply, x)
    rows, warps = tile_of(weight.format, 1)
    taken = next(time for time, tile in tiles if tile == (rows, warps))
    yield f"{name} {shape[0]} x {shape[1]}: {weight.n_bytes / speed:.1f} µs by the memory"
    yield f"  {rows} rows, {warps} warps: {taken:.1f} µs; fastest {_few(tiles)}"
    if name == "Q4_0":
        want = out.clone()
        multiply(weight, x, want, rows, warps)
        for planes in (1, 2, 3):
            given = quantised(x[0], planes)
            multiply_integers(weight, given, out, 4, 2)
            error = ((out - want).norm() / want.norm()).item()
            yield f"  {planes} planes: error {error:.1e}; {_few(timed(multiply_integers, given))}"


def _few(times: list[tuple[float, tuple[int, int]]]) -> str:
    return ", ".join(f"{time:.1f} ({rows} x {warps})" for time, (rows, warps) in times[:3])


def main() -> int:
    """Run the command."""
    if not torch.cuda.is_available():
        show("there is no GPU here")
        return 1
    torch.manual_seed(0)
    device, speed = CudaDevice(torch.device("cuda")), bytes_per_microsecond()
    show(f"{torch.cuda.get_device_name()}: {speed / 1e6:.2f} TB/s; times of (rows x warps)")
    for shape, name in product(SHAPES, TYPES):
        for row in rows_of(device, name, shape, speed):
            show(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
