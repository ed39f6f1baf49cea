"""Random keys that both `ops` and the device hold, and what the formulas choose of them."""

from __future__ import annotations

import numpy as np
import torch

from kvarn.cuda_ops.select.sketch import Rotation, SketchScratch, best_sketched
from kvarn.ops import select as ops
from kvarn.ops.attention import TileLayout
from kvarn.ops.attention.api import append_kv
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.reference.attention import read_kv
from kvarn.ops.reference.select import best_reference, position_hash_reference
from kvarn.ops.select.queries import RANGE

SEED = 20_240_517


def frame_of(heads: int, head_dim: int) -> ops.Frame:
    """A frame with a centre and scales at random."""
    rng = np.random.default_rng(head_dim)
    centre = rng.standard_normal((heads, head_dim)).astype(np.float32)
    return ops.Frame.of(0.3 * centre, rng.uniform(0.5, 2, centre.shape).astype(np.float32))


class Cache:
    """Stored keys on both sides, and room for their sketches."""

    def __init__(self, device, keys: np.ndarray, kind: str) -> None:
        n, self.heads, head_dim = keys.shape
        self.device, self.layout, self.n = device, TileLayout(head_dim, kind, kind), n
        n_segments, size = -(-n // SEGMENT), self.layout.segment_bytes(self.heads)
        self.memory = np.zeros((n_segments, size), np.uint8)
        self.places = self.memory.ctypes.data + size * np.arange(n_segments)
        keys = np.ascontiguousarray(keys, np.float32)
        append_kv(keys, keys, self.places, self.layout, 0)
        self.kv = torch.tensor(self.memory, device=device)
        self.rotation = ops.Rotation.random(head_dim, 5)
        self.frame = ops.Frame.plain(self.heads, head_dim)
        shape = n_segments, self.heads, SEGMENT
        self.bits = np.full((*shape, self.rotation.bits // 8), 0xA5, np.uint8)
        self.factors = np.full(shape, -7, np.float16)

    @property
    def columns(self) -> list[np.ndarray]:
        """Addresses of the segments of the sketches."""
        both = self.bits, self.factors
        return [x.ctypes.data + x[0].nbytes * np.arange(len(x)) for x in both]

    def items(self) -> list[torch.Tensor]:
        """Copies of the columns of sketches, uint8 (segments, bytes of a segment)."""
        return [
            torch.tensor(x.view(np.uint8).reshape(len(x), -1), device=self.device)
            for x in (self.bits, self.factors)
        ]

    def sketch(self, first: int, last: int) -> None:
        """The sketches that `ops` makes."""
        ops.sketch_keys(self.host_keys, self.layout, first, last)

    @property
    def host_keys(self) -> ops.SketchedKeys:
        return ops.SketchedKeys(self.places, *self.columns, self.rotation, self.frame)

    def keys(self, columns: list[torch.Tensor]) -> ops.SketchedKeys:
        """Those of the device, with other columns."""
        rotation = Rotation.random(self.layout.head_dim, 5, self.device)
        frame = ops.Frame(*(torch.tensor(x, device=self.device) for x in self.frame))
        return ops.SketchedKeys(self.kv, *columns, rotation, frame)

    def from_ops(self, q, among: ops.Range, wanted: ops.Wanted) -> list[np.ndarray]:
        index = np.zeros((self.heads, self.n), np.uint32)
        counts = np.zeros(self.heads, np.int64)
        scratch = ops.SketchScratch(
            q.shape[1], self.heads, self.n, max(wanted.n_candidates, wanted.k), self.layout
        )
        lists = ops.Lists(index, counts)
        ops.best_sketched(q, self.host_keys, among, wanted, lists, scratch=scratch)
        return [index[j, :n] for j, n in enumerate(counts)]

    def on_gpu(self, q, among: ops.Range, wanted: ops.Wanted, scratch=None) -> list[np.ndarray]:
        def tensor(x, **more) -> torch.Tensor:
            return torch.tensor(x, device=self.device, **more)

        few = max(wanted.n_candidates, wanted.k)
        scratch = scratch or SketchScratch(
            q.shape[1], self.heads, self.n, few, self.layout, device=self.device
        )
        index = torch.full((self.heads, self.n), -1, dtype=torch.int32, device=self.device)
        counts = torch.zeros(self.heads, dtype=torch.int32, device=self.device)
        keys = self.keys(self.items())
        lists = ops.Lists(index, counts)
        best_sketched(tensor(q), keys, among, wanted, lists, scratch=scratch)
        return [index[j, :n].cpu().numpy() for j, n in enumerate(counts.tolist())]

    def from_formula(self, q, among: ops.Range, wanted: ops.Wanted) -> list[np.ndarray]:
        """What the formulas say in NumPy, of the sketches that `ops` has made."""
        heads, (first, last, stop) = q.shape[1], among
        group, none = heads // self.heads, np.zeros(last - first, np.bool_)
        together = next(n for n in (4, 3, 2, 1) if group % n == 0)
        keys = read_kv(self.places, self.layout, self.heads, 0, stop)[0].astype(np.float64)
        few = min(wanted.n_candidates, max(wanted.k, last - first))
        lists = []
        for j in range(self.heads):
            estimates = self._estimates(q[0, j * group : (j + 1) * group], j)[:, first:last]
            near = [best_reference(costs_of(x), first, few, wanted.seed, none) for x in estimates]
            best = [np.arange(first), np.arange(last, stop)]
            for g in range(group):
                others = range(g // together * together, (g // together + 1) * together)
                own = np.unique(np.concatenate([near[i] for i in others]))
                costs = np.full(last - first, np.inf)
                costs[own - first] = -(keys[own, j] @ q[0, j * group + g].astype(np.float64))
                best.append(best_reference(costs, first, wanted.k, wanted.seed, none))
            lists.append(np.unique(np.concatenate(best)))
        return lists

    def _estimates(self, q, j: int) -> np.ndarray:
        """float32 (heads, tokens), in units of each query: sums by tables of int8, saturated."""
        n = self.rotation.bits
        y = np.zeros((len(q), n))
        y[:, : q.shape[1]] = q * self.frame.inverse[j, : q.shape[1]]
        y = y @ self.rotation.weights[: n * n].reshape(n, n)
        length = RANGE * np.sqrt(n) * np.linalg.norm(y, axis=1, keepdims=True)
        y *= 127 / np.where(length > 0, length, np.inf)
        signs = (np.arange(16)[:, None] >> np.arange(4) & 1) * 2.0 - 1
        tables = np.rint(y.reshape(len(q), -1, 4) @ signs.T)
        bits = self.bits[:, j].reshape(-1, n // 8)
        index = np.stack([bits & 15, bits >> 4], 2).reshape(len(bits), -1)
        sums = np.zeros((len(q), len(bits)))
        for i in range(n // 4):
            sums = np.clip(sums + tables[:, i, index[:, i]], -128, 127)
        sums = np.maximum(sums, -127).astype(np.float32)
        return sums * self.factors[:, j].ravel().astype(np.float32)

    def check(
        self, q, among: ops.Range, wanted: ops.Wanted, scratch=None, *, from_ops: bool = False
    ) -> list[np.ndarray]:
        """The list is that of the formula, or of `ops`, which compiles a kernel; returns it."""
        got = self.on_gpu(q, among, wanted, scratch)
        want = (self.from_ops if from_ops else self.from_formula)(q, among, wanted)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
        return got


def sampled(first: int, n: int) -> np.ndarray:
    """The tokens that a sample of n has: one of each of 2,048 parts of equal length."""
    i = np.arange(2048)
    begin, stop = i * n // 2048, (i + 1) * n // 2048
    return first + begin + position_hash_reference(i, 0) % (stop - begin)


def costs_of(x: np.ndarray) -> np.ndarray:
    """Costs in the order of ops: 0 is better than -0."""
    bits = x.view(np.uint32)
    return np.where(bits >> 31, bits, bits ^ np.uint32(0x7FFFFFFF))


def keys_of(seed: int, n: int, heads: int, head_dim: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, heads, head_dim)).astype(np.float32)


def queries_of(seed: int, heads: int, head_dim: int) -> np.ndarray:
    return keys_of(1000 + seed, 1, heads, head_dim)
