"""What choosing takes of a token on this GPU: `python -m lab.gpu.choosing [TILES]`.

One layer of the shape of a 1B model, in microseconds: `full`, and of methods that choose all of it
and each kernel. Lists are compared with those of NumPy. TILES: `narrow` and `settle` with so many
candidates at a time by so many warps, such as 2048x8 1024x16.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import torch
from torch.profiler import ProfilerActivity, profile

from kvarn.cuda_ops.memory import Graph
from kvarn.cuda_ops.select.sketch import choice
from kvarn.system.terminal import show

from .layer import Layer

LENGTHS = (2048, 8192, 65536, 131072)
METHODS = {"topk": 0.01 / 4, "auto": 0.015, "hash": 0.02 / 4}
"""What a query head takes by default, as a share of the tokens."""
CALLS = 16


def times_of(call: Callable[[], None]) -> tuple[float, dict[str, float]]:
    """Microseconds of a call in a graph, and of its kernels."""

    def calls() -> None:
        for _ in range(CALLS):
            call()

    graph, best = Graph(calls), float("inf")
    for _ in range(5):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.run()
        last.record()
        torch.cuda.synchronize()
        best = min(best, first.elapsed_time(last) * 1e3 / CALLS)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        graph.run()
        torch.cuda.synchronize()
    kernels: dict[str, float] = {}
    for event in profiled.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            name = event.name.removesuffix("_kernel")
            kernels[name] = kernels.get(name, 0.0) + event.time_range.elapsed_us() / CALLS
    return best, kernels


def rows_of(n: int, tiles: list[str]) -> Iterator[str]:
    """What is told of a context of n tokens."""
    for method, share in METHODS.items():
        layer = Layer(torch.device("cuda"), n, max(1, int(n * share)))
        if method == "topk":
            yield f"{n:,} tokens: full {times_of(layer.full)[0]:.1f} µs"
        for tile in tiles if method != "hash" else tiles[:1]:
            size, warps = map(int, tile.split("x"))
            choice.CHOOSING.update(BLOCK=size, num_warps=warps)
            total, kernels = times_of(layer.hash if method == "hash" else layer.sketch)
            layer.check(method)
            each = ", ".join(f"{kernel} {time:.1f}" for kernel, time in kernels.items())
            yield f"  {method}, k {layer.k}, {tile}: {total:.1f} µs ({each})"
        if method != "hash":
            c = layer.sketches.search.candidates
            few, most = int((c.counts < 2 * layer.k).sum()), c.counts.max().item()
            yield f"    up to {most} candidates, {few} heads lack some; lists {c.n_tokens.tolist()}"


def main() -> int:
    """Run the command."""
    if not torch.cuda.is_available():
        show("there is no GPU here")
        return 1
    tiles = sys.argv[1:] or ["{BLOCK}x{num_warps}".format(**choice.CHOOSING)]
    for n in LENGTHS:
        for row in rows_of(n, tiles):
            show(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
