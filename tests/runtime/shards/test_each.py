"""Each shard takes its part of the tokens, the best of its own."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.ops.reference.select import largest_reference, nearest_reference
from kvarn.ops.select import Lists, Range, SketchScratch, Wanted, best_sketched
from kvarn.runtime.attend import Attend
from kvarn.runtime.attend.sparse import SEED
from kvarn.runtime.engine import on_engine
from kvarn.runtime.methods import called
from kvarn.runtime.packs.pack import build_pack, index_pack

from ..reading import SHAPE, ids_of
from .processes import attended, greedy, opened, over, shards

SIGNED = kvarn.Hash(budget=200, sink=8, window=32)
EXACT = kvarn.TopK(budget=200, index="flat")
SKETCHED = kvarn.TopK(budget=200, sink=8, window=32)
K = 100
"""200 for two query heads."""
HEADS = SHAPE.n_kv_heads
Pick = Callable[[tuple[int, int, int], int], Any]
"""The tokens of each KV head in a range, and all before it: so many of each query head."""


def picks(context: kvarn.Context, method: Attend, q: np.ndarray) -> list[Pick]:
    """How each layer of a context chooses for q (1, H, E): by NumPy over the keys as stored; by
    sketches as one token does."""
    index = context._cache.attend._index

    def sketched(view, among, k):
        lists = Lists(np.empty((HEADS, among[1]), np.uint32), np.empty(HEADS, np.int64))
        scratch = SketchScratch(SHAPE.n_heads, HEADS, among[1], 2 * k, view.store.layout)
        wanted = Wanted(k, min(2 * k, among[1] - among[0]), SEED)
        on_engine(best_sketched, q, index.keys(view), Range(*among), wanted, lists, scratch=scratch)
        return [row[:n] for row, n in zip(*lists)]

    def nearest(view, among, k):
        places, size = index.column.segments(view.index), index.column.item_bytes
        items = view.device.read_items(places, HEADS, size)[:, : among[1]]
        signatures = items.copy().view(f"<u{size}")[..., 0].astype(np.uint64)
        return nearest_reference(index.sign(view, q), signatures, 32, among, k, SEED)

    def largest(view, among, k):
        keys, _ = stored(view, among[1])
        scores = np.einsum("jge,tje->jgt", q[0].reshape(HEADS, -1, SHAPE.head_dim), keys)
        return largest_reference(scores.reshape(SHAPE.n_heads, -1), HEADS, among, k, SEED)

    pick = {"hash": nearest, "topk": sketched if method is SKETCHED else largest}[method.name]
    return [lambda among, k, view=view: pick(view, among, k) for view in context._cache.layers]


def stored(view, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of a layer's first tokens, float32 (T, J, E)."""
    places = view.store.segments(view.index)
    return view.device.read_kv(places, view.store.layout, HEADS, 0, stop)


def check(
    context: kvarn.Context, q: np.ndarray, of_ranges: list[list[Pick]], cuts: list[int]
) -> None:
    """A token's attention is that to what is read without being chosen, and to the best of each
    range of tokens between cuts."""
    n, method = cuts[-1], context.plan.attend.method
    found, chosen = attended(context, q, n - 1)
    assert not chosen
    among = method.sink, n - method.window
    for i, (view, out) in enumerate(zip(context._cache.layers, found)):
        lists: list[set[int]] = [set() for _ in range(HEADS)]
        for picks_of, (first, stop) in zip(of_ranges, pairwise(cuts), strict=True):
            inside = max(first, among[0]), min(stop, among[1])
            share = -(-K * (inside[1] - inside[0]) // (among[1] - among[0]))
            for tokens, best in zip(lists, picks_of[i]((*inside, inside[1]), share)):
                tokens |= {t for t in best.tolist() if t >= inside[0]}
        keys, values = stored(view, n)
        for j, tokens in enumerate(lists):
            listed = [*range(among[0]), *sorted(tokens), *range(among[1], n)]
            for h in range(2 * j, 2 * j + 2):
                s = view.softmax.scale * (keys[listed, j].astype(float) @ q[0, h])
                weights = np.exp(s - s.max())
                expected = weights @ values[listed, j] / weights.sum()
                np.testing.assert_allclose(out[0, h], expected, rtol=1e-4, atol=1e-5)


def query(seed: int = 0) -> np.ndarray:
    shape = 1, SHAPE.n_heads, SHAPE.head_dim
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("method", [SIGNED, EXACT, SKETCHED], ids=called)
def test_each_shard_takes_its_part_of_its_own_tokens(
    model: kvarn.Model, pack: Path, method: Attend
) -> None:
    with shards(pack, (0, 1), (1, 3)) as processes:
        attend = over([one.address for one in processes], method, choice="each")
        with opened(model, pack, attend) as context:
            check(context, query(), [picks(context, method, query())] * 3, [0, 1024, 3072, 5200])
            assert context._cache.attend.reads[0].steps == 1


@pytest.mark.parametrize("n", [1500, 2500, 5200])
def test_shards_choose_in_the_frame_of_their_pack(
    model: kvarn.Model, tmp_path: Path, n: int
) -> None:
    """However far a context has gone on after a short pack, or was cut: its own tokens are in the
    frame of as many segments as it has."""
    pack, q = tmp_path / "pack", query()
    build_pack(model, pack, ids_of(model, n), n)
    index_pack(model, pack, SKETCHED)
    with shards(pack, (0, 1)) as (shard,), opened(model, pack, SKETCHED) as before:
        attended(before, q, n - 1)  # which makes its index
        attend = over([shard.address], SKETCHED, choice="each")
        with opened(model, pack, attend) as context:
            context.truncate(1400)
            for stop in (2030, 4080):
                context.prefill(ids_of(model, stop - len(context.tokens), seed=stop))
                assert len(greedy(context, 30)) == 30  # of which one completes a segment
                of_ranges = [picks(one, SKETCHED, q) for one in (before, context)]
                check(context, q, of_ranges, [0, 1024, len(context.tokens)])
