"""Products of few tokens on this GPU: `python -m lab.gpu.products`.

For each type and shape: what the memory allows, kvarn's kernel, the trial of `integers` with and
without rounding the vectors, and the fastest tiles of both. There are more copies of a matrix than
the L2 cache holds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context

import numpy as np
import torch
import triton

from kvarn.cuda_ops.device import CudaDevice
from kvarn.cuda_ops.linear import Weight
from kvarn.cuda_ops.linear.kernels import Vectors, magic, product_kernel
from kvarn.cuda_ops.linear.linear import tile_of, tokens_at_once
from kvarn.ops.arrays import U8
from kvarn.ops.types import QUANT_TYPES, row_bytes
from kvarn.system.terminal import show

from . import integers
from .integers import Integers

SHAPES = ((2048, 2048), (8192, 2048), (2048, 8192), (4096, 4096), (14336, 4096), (4096, 14336))
TYPES = (*integers.TYPES, "F16")
TOKENS = (2, 4, 8)
"""Beside one, for the largest shape."""
TILES = tuple(product((2, 4, 8), (1, 2, 4)))
"""Rows and warps of a program."""
BYTES = 160 << 20
"""Of all copies of a matrix."""
_SCALES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where blocks have f16 numbers, if not only at their beginning."""

Tile = tuple[int, int]


def multiply(weight: Weight, x: torch.Tensor, out: torch.Tensor, tile: Tile) -> None:
    """kvarn's kernel with a tile of so many rows and warps."""
    (n_tokens, n_cols), (rows, warps), f = x.shape, tile, weight.format
    tokens = tokens_at_once(f, n_tokens)
    product_kernel[(triton.cdiv(weight.n_rows, rows), triton.cdiv(n_tokens, tokens))](
        Vectors(x, n_cols, n_tokens), (weight.planes,), (out,), (weight.n_rows,),
        (out.stride(0),), magic(x.device), FORMATS=(f,), SHAPES=((rows, 32 * warps),),
        TOKENS=tokens, num_warps=warps,
    )  # fmt: skip


def random_rows(name: str, n_rows: int, n_cols: int) -> U8:
    """A file's rows of random codes whose scales are 0.01, or of floats."""
    rng, quant = np.random.default_rng(0), QUANT_TYPES[name]
    if name == "F16":
        floats = (0.02 * rng.standard_normal((n_rows, n_cols))).astype(np.float16)
        return floats.view(np.uint8)
    data: U8 = rng.integers(0, 256, (n_rows, row_bytes(quant, n_cols)), dtype=np.uint8)
    for at in _SCALES.get(name, (0,)):
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
    """Of one call, in a graph over all copies."""
    call(weights[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            call(weight)
    return replay_microseconds(graph.replay) / len(weights)


def replay_microseconds(replay: Callable[[], object]) -> float:
    """Of the fastest of five replays of a graph."""
    best = float("inf")
    for _ in range(5):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        replay()
        last.record()
        torch.cuda.synchronize()
        best = min(best, first.elapsed_time(last) * 1e3)
    return best


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


class Products:
    """A matrix of random codes and so many random vectors, for kvarn's kernel and the trial."""

    def __init__(self, name: str, shape: tuple[int, int], n_tokens: int) -> None:
        (n_rows, n_cols), device = shape, CudaDevice(torch.device("cuda"))
        self.has_trial = name in integers.TYPES
        self.weight = device.weight(QUANT_TYPES[name], random_rows(name, *shape), n_cols, name)
        f = self.weight.format
        self.usual = tile_of(f, tokens_at_once(f, n_tokens))
        self.x = torch.randn(n_tokens, n_cols, device="cuda")
        self.out = torch.empty(n_tokens, n_rows, device="cuda")
        if self.has_trial:
            self.rounded = Integers.allocate(n_tokens, n_cols, self.x.device)
            integers.round_to_integers(self.x, self.rounded)

    def floats(self, weight: Weight, tile: Tile) -> None:
        """By kvarn's kernel."""
        multiply(weight, self.x, self.out, tile)

    def trial(self, weight: Weight, tile: Tile) -> None:
        """By integers, of vectors that have been rounded."""
        integers.multiply(weight, self.rounded, self.out, tile)

    def trial_and_rounding(self, weight: Weight, tile: Tile) -> None:
        """By integers."""
        integers.round_to_integers(self.x, self.rounded)
        self.trial(weight, tile)

    def error(self) -> float:
        """The trial's, of the norm of kvarn's products."""
        self.floats(self.weight, self.usual)
        want = self.out.clone()
        self.trial(integers.in_order(self.weight), self.usual)
        return ((self.out - want).norm() / want.norm()).item()

    def told(self, speed: float) -> Iterator[str]:
        """Times, in lines; speed in bytes a microsecond."""
        weights = copies(self.weight)
        usual = microseconds(partial(self.floats, tile=self.usual), weights)
        yield f"  {self.weight.n_bytes / speed:.1f} µs by the memory"
        yield f"  kvarn {usual:.1f}: tiles {_few(fastest(self.floats, weights))}"
        if self.has_trial:
            weights = copies(integers.in_order(self.weight))
            times = fastest(self.trial, weights)
            whole = microseconds(partial(self.trial_and_rounding, tile=times[0][1]), weights)
            yield f"  by integers {times[0][0]:.1f}, with rounding {whole:.1f}: tiles {_few(times)}"
            yield f"  error {self.error():.1e}"


def fastest(call: Callable[..., None], weights: list[Weight]) -> list[tuple[float, Tile]]:
    """Times of the tiles, the best first."""
    return sorted((microseconds(partial(call, tile=tile), weights), tile) for tile in TILES)


def _few(times: list[tuple[float, Tile]]) -> str:
    return ", ".join(f"{time:.1f} ({rows} x {warps})" for time, (rows, warps) in times[:3])


def compile_type(name: str) -> None:
    """All kernels of a type, into Triton's cache."""
    for n_tokens in (1, *TOKENS):
        products = Products(name, SHAPES[0], n_tokens)
        for tile in (products.usual, *TILES):
            products.floats(products.weight, tile)
            if products.has_trial:
                products.trial(products.weight, tile)


def main() -> int:
    """Run the command."""
    if not torch.cuda.is_available():
        show("there is no GPU here")
        return 1
    with ProcessPoolExecutor(len(TYPES), get_context("spawn")) as processes:
        list(processes.map(compile_type, TYPES))
    torch.manual_seed(0)
    speed = bytes_per_microsecond()
    show(f"{torch.cuda.get_device_name()}: {speed / 1e6:.2f} TB/s; times of (rows x warps)")
    cases = [(shape, 1) for shape in SHAPES] + [(SHAPES[4], n_tokens) for n_tokens in TOKENS]
    for name, (shape, n_tokens) in product(TYPES, cases):
        show(f"{name} {shape[0]} x {shape[1]}, tokens: {n_tokens}")
        for row in Products(name, shape, n_tokens).told(speed):
            show(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
