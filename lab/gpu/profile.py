"""Kernels by their time: `python -m lab.gpu.profile MODEL.gguf --method full --depth 8192`.

The prompt is of random tokens, which a method finds harder to choose among than a text's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

import kvarn
from kvarn.system.terminal import show

METHODS = {"full": kvarn.Full, "topk": kvarn.TopK, "hash": kvarn.Hash}
N_TOKENS = 64
MOST_ROWS = 16


def measure(path: str, method: str, depth: int) -> None:
    """Profile a prompt of `depth` tokens, then tokens after it."""
    model = kvarn.load(path, device="cuda")
    context = model.context(depth + 4 * N_TOKENS, METHODS[method]())
    ids = np.random.default_rng(0).integers(0, model.config.n_vocab, depth).tolist()

    def generate() -> None:
        for _ in range(N_TOKENS):
            context.decode(ids[0])

    context.prefill(ids[:N_TOKENS])  # compiles
    _show(f"{depth:,} tokens of a prompt", lambda: context.prefill(ids), 1)
    generate()
    _show(f"a token after {depth:,}", generate, N_TOKENS)


def _show(name: str, run: Callable[[], object], n: int) -> None:
    """Milliseconds of each of n without the profiler, then microseconds of each kernel with it."""
    began = time.perf_counter()
    if n > 1:  # a prompt cannot be read again in the same context
        run()
        torch.cuda.synchronize()
        show(f"{name}: {(time.perf_counter() - began) / n * 1e3:.3f} ms")
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for event in profiled.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times.setdefault(event.name[:60], []).append(event.time_range.elapsed_us())
    show(f"{name}: kernels take {sum(map(sum, times.values())) / n:.1f} µs")
    for kernel, of_kernel in sorted(times.items(), key=lambda item: -sum(item[1]))[:MOST_ROWS]:
        show(f"  {sum(of_kernel) / n:9.1f} µs {len(of_kernel) / n:7.1f}x  {kernel}")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("model")
    parser.add_argument("--method", choices=METHODS, default="full")
    parser.add_argument("--depth", type=int, default=8192)
    options = parser.parse_args()
    measure(options.model, options.method, options.depth)
    return 0


if __name__ == "__main__":
    sys.exit(main())
