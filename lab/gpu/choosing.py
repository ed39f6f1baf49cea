"""What choosing takes of a token on this GPU: `python -m lab.gpu.choosing [TILES]`.

Microseconds of one layer, and of each kernel. TILES: candidates that `narrow` and `settle` read at
a time x warps, such as 2048x8 1024x16. `topk` must choose as it does where nothing is found among
few.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from kvarn.cuda_ops.append import append_kv
from kvarn.cuda_ops.memory import Graph, PlaceNumbers, in_memory
from kvarn.cuda_ops.select.hash import SignatureScratch, nearest
from kvarn.cuda_ops.select.sketch import Frames, Rotation, SketchScratch, best_sketched, sketch_keys
from kvarn.cuda_ops.select.sketch.choice import CHOOSING
from kvarn.ops.attention.layout import SEGMENT, TileLayout
from kvarn.ops.select import Lists, Range, SketchedKeys, Wanted
from kvarn.system.terminal import show

from .products import replay_microseconds

LENGTHS = (2048, 8192, 65536, 131072)
SHARES = {"topk": 0.01 / 4, "auto": 0.015, "hash": 0.02 / 4}
"""What a query head takes by default, as a share of the tokens."""
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 64  # of a 1B model
GROUP = HEADS // KV_HEADS
SINK, WINDOW, SEED = 4, 256, 77
CALLS = 16


class Layer:
    """The keys of n tokens, a query, and memory for choices of k.

    Keys drift, so that neighbours are alike, as in texts; signatures are random.
    """

    def __init__(self, device: torch.device, n: int, k: int) -> None:
        self.layout = layout = TileLayout(HEAD_DIM, "f16", "f16")
        torch.manual_seed(n)
        keys = torch.randn((n, KV_HEADS, HEAD_DIM), device=device)
        keys += torch.randn_like(keys).cumsum(0) / 16 % 4
        self.q = torch.randn((1, HEADS, HEAD_DIM), device=device)
        self.numbers = PlaceNumbers(6, device)
        self.numbers.set([SINK, n - WINDOW, n, k, 2 * k, SEED])
        sizes = 8 * SEGMENT * KV_HEADS, 2 * SEGMENT * KV_HEADS, 4 * SEGMENT * KV_HEADS
        kv, bits, factors, self.items = (
            torch.randint(256, (n // SEGMENT, size), dtype=torch.uint8, device=device)
            for size in (layout.segment_bytes(KV_HEADS), *sizes)
        )
        self.words = torch.randint(1 << 32, (KV_HEADS, GROUP), device=device).view(torch.uint64)
        for start in range(0, n, SEGMENT):
            rows = keys[start : start + SEGMENT]
            append_kv(rows, rows, kv, layout, in_memory(device, start))
        rotation: Any = Rotation.random(HEAD_DIM, 5, device)
        frame = Frames(device).plain(KV_HEADS, HEAD_DIM)
        self.keys: Any = SketchedKeys(kv, bits, factors, rotation, frame)
        sketch_keys(self.keys, layout, 0, n)
        self.sketches = SketchScratch(HEADS, KV_HEADS, n, 2 * k, layout, device=device)
        self.signatures = s = SignatureScratch(HEADS, KV_HEADS, n, k, device=device)
        room = min(n, SINK + WINDOW + GROUP * k)
        self.lists: Any = Lists(s.zeros(KV_HEADS, room), s.zeros(KV_HEADS))

    def sketch(self) -> None:
        """Choose by sketches."""
        numbers = self.numbers.now()
        choice = Range(*numbers[:3]), Wanted(*numbers[3:]), self.lists
        best_sketched(self.q, self.keys, *choice, scratch=self.sketches)

    def hash(self) -> None:
        """Choose by signatures."""
        numbers = self.numbers.now()
        choice = Range(*numbers[:3]), Wanted(*numbers[3:]), self.lists
        nearest(self.words, self.items, 32, *choice, scratch=self.signatures)

    def check(self) -> None:
        """Raise AssertionError unless `sketch` chooses the same among all, having no room."""
        search, chosen = self.sketches.search, self._chosen()
        none = search.candidates._replace(room=0)
        self.sketches.search = search._replace(candidates=none)
        self.sketch()
        self.sketches.search = search
        if self._chosen() != chosen:
            raise AssertionError("other tokens are the best of all")

    def _chosen(self) -> list[list[int]]:
        tokens, counts = (x.tolist() for x in self.lists)
        return [line[:n] for line, n in zip(tokens, counts, strict=True)]


def times_of(call: Callable[[], None]) -> str:
    """Microseconds of a call in a graph, and of its kernels."""

    def calls() -> None:
        for _ in range(CALLS):
            call()

    graph = Graph(calls)
    best = replay_microseconds(graph.run) / CALLS
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        graph.run()
        torch.cuda.synchronize()
    kernels: dict[str, float] = {}
    for event in profiled.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            name = event.name.removesuffix("_kernel")
            kernels[name] = kernels.get(name, 0.0) + event.time_range.elapsed_us() / CALLS
    return f"{best:.1f} µs ({', '.join(f'{name} {time:.1f}' for name, time in kernels.items())})"


def rows_of(method: str, n: int, tiles: list[str]) -> Iterator[str]:
    """What is told of a method in a context of n tokens."""
    layer = Layer(torch.device("cuda"), n, max(1, int(n * SHARES[method])))
    if method == "hash":
        yield f"{n:,} tokens, hash: {times_of(layer.hash)}"
        return
    for tile in tiles:
        CHOOSING.update(zip(CHOOSING, map(int, tile.split("x")), strict=True))
        yield f"{n:,} tokens, {method}, {tile}: {times_of(layer.sketch)}"
        layer.check()


def main() -> int:
    """Run the command."""
    if not torch.cuda.is_available():
        show("there is no GPU here")
        return 1
    tiles = sys.argv[1:] or ["x".join(map(str, CHOOSING.values()))]
    for n in LENGTHS:
        for method in SHARES:
            for row in rows_of(method, n, tiles):
                show(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
