"""What choosing takes of a token on this GPU: `python -m lab.gpu.choosing`.

One layer of the shape of a 1B model, in microseconds: `full`, and of methods that choose all of it
and each kernel. Lists are compared with what NumPy chooses. Keys drift: neighbours are alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile

from kvarn.cuda_ops.append import append_kv
from kvarn.cuda_ops.attention import TokenScratch, gathered_attention, token_attention
from kvarn.cuda_ops.memory import Graph, PlaceNumbers, in_memory
from kvarn.cuda_ops.select.hash import SignatureScratch, nearest
from kvarn.cuda_ops.select.sketch import Frames, Rotation, SketchScratch, best_sketched, sketch_keys
from kvarn.ops.attention.layout import SEGMENT, TileLayout
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.reference.select import best_reference, nearest_reference, position_hash_reference
from kvarn.ops.select import Lists, Range, SketchedKeys, Wanted
from kvarn.system.terminal import show

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 64
LENGTHS = (2048, 8192, 65536, 131072)
SHARES = {"topk": 0.01 / 4, "auto": 0.015, "hash": 0.02 / 4}
"""Of the tokens, what a query head takes by default."""
SINK, WINDOW, SEED, CALLS = 4, 256, 77, 16


class Layer:
    """The keys of n tokens, and what chooses k of them."""

    def __init__(self, device: torch.device, n: int, k: int) -> None:
        self.n, self.k = n, k
        self.layout = layout = TileLayout(HEAD_DIM, "f16", "f16")
        torch.manual_seed(n)
        self.keys = torch.randn((n, KV_HEADS, HEAD_DIM), device=device)
        self.keys += torch.randn_like(self.keys).cumsum(0) / 16 % 4
        self.q = torch.randn((1, HEADS, HEAD_DIM), device=device)
        self.numbers = PlaceNumbers(12, device)
        self.numbers.set([n - 1, n, 0, 0, SINK, n - WINDOW, n, k, 2 * k, SEED, 0, 0])
        segments = n // SEGMENT
        sizes = layout.segment_bytes(KV_HEADS), 8 * SEGMENT * KV_HEADS, 2 * SEGMENT * KV_HEADS
        kv, bits, factors = (
            torch.zeros((segments, size), dtype=torch.uint8, device=device) for size in sizes
        )
        for start in range(0, n, SEGMENT):
            rows = self.keys[start : start + SEGMENT]
            append_kv(rows, rows, kv, layout, in_memory(device, start))
        frame = Frames(device).plain(KV_HEADS, HEAD_DIM)
        rotation = Rotation.random(HEAD_DIM, 5, device)
        self.sketched = SketchedKeys(kv, bits, factors, rotation, frame)
        sketch_keys(self.sketched, layout, 0, n)
        shape = HEADS, KV_HEADS, n
        self.sketches = SketchScratch(*shape, 2 * k, layout, device=device)
        self.signatures = SignatureScratch(*shape, k, device=device)
        plane = torch.randn((HEAD_DIM, 32), device=device)
        self.signs = tuple(
            ((x @ plane > 0) << torch.arange(32, device=device)).sum(-1)
            for x in (self.q[0], self.keys)
        )
        words = self.signs[1].view(segments, SEGMENT, KV_HEADS).transpose(1, 2)
        self.items = words.to(torch.int32).contiguous().view(torch.uint8).view(segments, -1)
        self.queries = self.signs[0].view(torch.uint64).view(KV_HEADS, -1)
        room = min(n, SINK + WINDOW + k * HEADS // KV_HEADS)
        self.lists = Lists(self.signatures.zeros(KV_HEADS, room), self.signatures.zeros(KV_HEADS))
        self.out = torch.empty_like(self.q)
        self.attention = TokenScratch(HEADS, KV_HEADS, layout, n, device)

    def _read(self) -> None:
        gathered_attention(
            self.q, *self.lists, self.sketched.segments, self.out, softmax=Softmax(0.125, 0.0),
            scratch=self.attention,
        )  # fmt: skip

    def full(self) -> None:
        start = in_memory(self.q.device, self.numbers.now()[0])
        token_attention(
            self.q, self.sketched.segments, start, self.out, softmax=Softmax(0.125, 0.0),
            scratch=self.attention,
        )  # fmt: skip

    def topk(self) -> None:
        first, stop, _, _, *among = self.numbers.now()
        sketch_keys(self.sketched, self.layout, first, stop)
        best_sketched(
            self.q, self.sketched, Range(*among[:3]), Wanted(*among[3:6]), self.lists,
            scratch=self.sketches,
        )  # fmt: skip
        self._read()

    auto = topk

    def hash(self) -> None:
        among = self.numbers.now()[4:]
        nearest(
            self.queries, self.items, 32, Range(*among[:3]), Wanted(*among[3:6]), self.lists,
            scratch=self.signatures,
        )  # fmt: skip
        self._read()

    def from_estimates(self) -> list[NDArray[np.intp]]:
        """What `topk` should have chosen, by its tables and products, which are checked as well."""
        s, first, last = self.sketches, SINK, self.n - WINDOW
        queries, found, lists = s.search.queries, s.search.candidates, []
        none = np.zeros(last - first, np.bool_)
        for j in range(KV_HEADS):
            bits = self.sketched.bits.view(-1, KV_HEADS, SEGMENT, 8)[:, j].reshape(-1, 8).int()
            halves = torch.stack((bits & 15, bits >> 4), 2).reshape(-1, 16)
            factors = self.sketched.factors.view(torch.float16).view(-1, KV_HEADS, SEGMENT)
            factor, best = factors[:, j].reshape(-1).float(), [np.arange(first)]
            near = []
            for g in range(s.together):
                sums = torch.zeros_like(factor)
                for i, table in enumerate(queries.tables[j, :, :, g].float() - 128):
                    sums = (sums + table[halves[:, i]]).clamp(-128, 127)
                estimates = (sums.clamp(min=-127) * factor)[first:last].cpu().numpy()
                near.append(best_reference(-estimates, first, 2 * self.k, SEED, none))
            entries = found.scored[4 * j : 4 * j + 4, : int(found.n_tokens[j])].cpu().numpy()
            costs, tokens = entries >> 32 & 0xFFFFFFFF, entries & 0x7FFFFFFF
            np.testing.assert_array_equal(np.sort(tokens[0]), np.unique(np.concatenate(near)))
            products = (
                self.keys[tokens[0], j].half().double() @ self.q[0, 4 * j : 4 * j + 4].double().T
            )
            bits = np.where(costs >> 31, costs, costs ^ 0x7FFFFFFF).astype(np.uint32)
            np.testing.assert_allclose(bits.view(np.float32), products.T.cpu(), atol=1e-3)
            for order, position in zip(costs, tokens, strict=True):
                hashes = position_hash_reference(position, SEED)
                best.append(position[np.lexsort((hashes, order))[: self.k]])
            lists.append(np.unique(np.concatenate((*best, np.arange(last, self.n)))))
        return lists

    def from_signatures(self) -> list[NDArray[np.intp]]:
        """What `hash` should have chosen."""
        queries, keys = (x.cpu().numpy().astype(np.uint64) for x in self.signs)
        among = SINK, self.n - WINDOW, self.n
        return nearest_reference(queries.reshape(KV_HEADS, -1), keys.T, 32, among, self.k, SEED)


def times_of(call: Callable[[], None]) -> tuple[float, dict[str, float]]:
    """Microseconds of a call in a graph, and of its kernels."""
    graph = Graph(lambda: [call() for _ in range(CALLS)] and None)
    best = float("inf")
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


def rows_of(n: int) -> Iterator[str]:
    """What is told of a context of n tokens."""
    for name, share in SHARES.items():
        layer = Layer(torch.device("cuda"), n, max(1, int(n * share)))
        if name == "topk":
            yield f"{n:,} tokens: full {times_of(layer.full)[0]:.1f} µs"
        total, kernels = times_of(getattr(layer, name))
        chosen = zip(layer.lists.tokens.cpu().numpy(), layer.lists.counts.tolist(), strict=True)
        want = layer.from_signatures() if name == "hash" else layer.from_estimates()
        for (tokens, count), tokens_wanted in zip(chosen, want, strict=True):
            np.testing.assert_array_equal(tokens[:count], tokens_wanted)
        each = ", ".join(f"{kernel} {time:.1f}" for kernel, time in kernels.items())
        yield f"  {name}, k {layer.k}: {total:.1f} µs ({each}); {_candidates(layer, name)}"


def _candidates(layer: Layer, name: str) -> str:
    """How many there were by the last choice, of query heads and of those that share a pass."""
    if name == "hash":
        return f"candidates {layer.signatures.candidates.counts.tolist()}"
    found = layer.sketches.search.candidates
    few = (found.counts < 2 * layer.k).sum().item()
    return (
        f"candidates {found.counts.float().mean().item():.0f} ({few} heads lack some), lists "
        f"{found.n_tokens.tolist()}"
    )


def main() -> int:
    """Run the command."""
    if not torch.cuda.is_available():
        show("there is no GPU here")
        return 1
    for n in LENGTHS:
        for row in rows_of(n):
            show(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
