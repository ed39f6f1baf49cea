"""One layer of the shape of a 1B model on a GPU: keys, and the calls by which a token reads it.

Keys drift, so that neighbours are alike, as in texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvarn.cuda_ops.append import append_kv
from kvarn.cuda_ops.attention import TokenScratch, gathered_attention, token_attention
from kvarn.cuda_ops.memory import PlaceNumbers, in_memory
from kvarn.cuda_ops.select.hash import SignatureScratch, nearest
from kvarn.cuda_ops.select.sketch import Frames, Rotation, SketchScratch, best_sketched, sketch_keys
from kvarn.ops.attention.layout import SEGMENT, TileLayout
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.reference.select import best_reference, nearest_reference, position_hash_reference
from kvarn.ops.select import Lists, Range, SketchedKeys, Wanted

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 64
GROUP = HEADS // KV_HEADS
SINK, WINDOW, SEED = 4, 256, 77


class Layer:
    """The keys of n tokens, a query, and memory for choices of k."""

    def __init__(self, device: torch.device, n: int, k: int) -> None:
        self.n, self.k = n, k
        self.layout = layout = TileLayout(HEAD_DIM, "f16", "f16")
        torch.manual_seed(n)
        self.keys = torch.randn((n, KV_HEADS, HEAD_DIM), device=device)
        self.keys += torch.randn_like(self.keys).cumsum(0) / 16 % 4
        self.q = torch.randn((1, HEADS, HEAD_DIM), device=device)
        self.numbers = PlaceNumbers(12, device)
        self.numbers.set([n - 1, n, 0, 0, SINK, n - WINDOW, n, k, 2 * k, SEED, 0, 0])
        sizes = layout.segment_bytes(KV_HEADS), 8 * SEGMENT * KV_HEADS, 2 * SEGMENT * KV_HEADS
        kv, bits, factors = (
            torch.zeros((n // SEGMENT, n_bytes), dtype=torch.uint8, device=device)
            for n_bytes in sizes
        )
        for start in range(0, n, SEGMENT):
            rows = self.keys[start : start + SEGMENT]
            append_kv(rows, rows, kv, layout, in_memory(device, start))
        frame = Frames(device).plain(KV_HEADS, HEAD_DIM)
        rotation: Any = Rotation.random(HEAD_DIM, 5, device)
        self.sketched: Any = SketchedKeys(kv, bits, factors, rotation, frame)
        sketch_keys(self.sketched, layout, 0, n)
        self.sketches = SketchScratch(HEADS, KV_HEADS, n, 2 * k, layout, device=device)
        self.signatures = s = SignatureScratch(HEADS, KV_HEADS, n, k, device=device)
        planes = torch.randn((HEAD_DIM, 32), device=device)
        bit = torch.arange(32, device=device)
        self.signs = [((x @ planes > 0).long() << bit).sum(-1) for x in (self.q[0], self.keys)]
        words = self.signs[1].view(-1, SEGMENT, KV_HEADS).transpose(1, 2).to(torch.int32)
        self.items = words.contiguous().view(torch.uint8).view(n // SEGMENT, -1)
        room = min(n, SINK + WINDOW + GROUP * k)
        self.lists: Any = Lists(s.zeros(KV_HEADS, room), s.zeros(KV_HEADS))
        self.out = self.q.clone()
        self.attention = TokenScratch(HEADS, KV_HEADS, layout, n, device)

    def full(self) -> None:
        """A token reads all."""
        start = in_memory(self.q.device, self.numbers.now()[0])
        self._attend(token_attention, self.sketched.segments, start)

    def sketch(self) -> None:
        """A token chooses by sketches, of its own key as well."""
        first, stop, _, _, *numbers = self.numbers.now()
        sketch_keys(self.sketched, self.layout, first, stop)
        choice = self.sketched, Range(*numbers[:3]), Wanted(*numbers[3:6]), self.lists
        best_sketched(self.q, *choice, scratch=self.sketches)
        self._attend(gathered_attention, *self.lists, self.sketched.segments)

    def hash(self) -> None:
        """A token chooses by signatures, which are there."""
        numbers, queries = self.numbers.now()[4:], self.signs[0].view(torch.uint64)
        choice = Range(*numbers[:3]), Wanted(*numbers[3:6]), self.lists
        nearest(queries.view(-1, GROUP), self.items, 32, *choice, scratch=self.signatures)
        self._attend(gathered_attention, *self.lists, self.sketched.segments)

    def _attend(self, attention: Any, *read: Any) -> None:
        attention(self.q, *read, self.out, softmax=Softmax(0.125), scratch=self.attention)

    def check(self, method: str) -> None:
        """Raise AssertionError unless the lists are those of NumPy."""
        want = (
            self._by_signatures() if method == "hash" else map(self._by_sketches, range(KV_HEADS))
        )
        tokens, counts = (x.cpu().numpy() for x in self.lists)
        for j, tokens_wanted in enumerate(want):
            np.testing.assert_array_equal(tokens[j, : counts[j]], tokens_wanted)

    def _by_signatures(self) -> list[NDArray[np.intp]]:
        queries, keys = (x.cpu().numpy().astype(np.uint64) for x in self.signs)
        among = SINK, self.n - WINDOW, self.n
        return nearest_reference(queries.reshape(-1, GROUP), keys.T, 32, among, self.k, SEED)

    def _by_sketches(self, j: int) -> NDArray[np.intp]:
        """By the tables of the queries and the products of candidates, which are checked, too."""
        s, first, last = self.sketches.search, SINK, self.n - WINDOW
        bits = self.sketched.bits.view(-1, KV_HEADS, SEGMENT, 8)[:, j].reshape(-1, 8).long()
        halves = torch.stack((bits & 15, bits >> 4), 2).reshape(-1, 16)
        factors = self.sketched.factors.view(torch.float16).view(-1, KV_HEADS, SEGMENT)[:, j]
        near, best = [], [np.arange(first), np.arange(last, self.n)]
        for g in range(GROUP):
            sums = torch.zeros(self.n, device=self.q.device)
            for i, table in enumerate(s.queries.tables[j, :, :, g].float() - 128):
                sums = (sums + table[halves[:, i]]).clamp(-128, 127)
            estimates = (sums.clamp(min=-127) * factors.reshape(-1).float())[first:last]
            none = np.zeros(last - first, np.bool_)
            costs = -estimates.cpu().numpy()
            near.append(best_reference(costs, first, 2 * self.k, SEED, none))
        entries = s.candidates.scored[GROUP * j : GROUP * (j + 1), : int(s.candidates.n_tokens[j])]
        costs, tokens = (entries >> 32 & 0xFFFFFFFF).cpu().numpy(), entries & 0x7FFFFFFF
        products = (
            self.keys[tokens[0], j].half().double() @ self.q[0, GROUP * j :][:GROUP].double().T
        )
        values = np.where(costs >> 31, costs, costs ^ 0x7FFFFFFF).astype(np.uint32)
        np.testing.assert_allclose(values.view(np.float32), products.T.cpu(), atol=1e-3)
        positions = tokens[0].cpu().numpy()
        np.testing.assert_array_equal(np.sort(positions), np.unique(np.concatenate(near)))
        hashes = position_hash_reference(positions, SEED)
        best += [positions[np.lexsort((hashes, of_head))[: self.k]] for of_head in costs]
        return np.unique(np.concatenate(best))
