"""Boxes of tiles against NumPy: they hold the stored keys, and bound every product."""

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.ops.attention.api import append_kv
from kvarn.ops.attention.layout import SEGMENT, TILE, TILES
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.select import largest_reference
from kvarn.ops.select import Range
from lab.methods.quest.api import TileScratch, bound_tiles, highest_tiles
from lab.methods.quest.layout import dimensions_of, tile_item_bytes

from ...thread_counts import with_threads
from .tiles import tile_bounds_reference

SEED = 5


class Boxes:
    """The column over a cache."""

    def __init__(self, cache) -> None:
        self.cache, n = cache, len(cache.segments)
        size = SEGMENT * tile_item_bytes(cache.layout.head_dim)
        self.memory = np.zeros((n, cache.n_kv_heads, size), np.uint8)
        self.items = self.memory.ctypes.data + self.memory[0].nbytes * np.arange(n)

    def build(self, first: int, last: int) -> None:
        cache = self.cache
        bound_tiles(cache.segments, cache.layout, cache.n_kv_heads, self.items, first, last)

    def sides(self, j: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Least, greatest (tiles, head_dim) of KV head j and the steps of its scales."""
        n, found = dimensions_of(self.cache.layout.head_dim), []
        for raw in self.memory[:, j]:
            box = raw[: 2 * TILES * n].view(np.int8).reshape(n, 2, TILES).astype(np.float64)
            scales = raw[2 * TILES * n :].view("<f4").reshape(4, TILES).astype(np.float64)
            steps = np.repeat(scales, n // 4, 0)
            found.append([x.T for x in (box[:, 0] * steps, box[:, 1] * steps, steps)])
        whole = (np.concatenate(part) for part in zip(*found))
        return tuple(part[:, : self.cache.layout.head_dim] for part in whole)

    def choose(self, q, among: Range, k: int) -> list[np.ndarray]:
        j = self.cache.n_kv_heads
        index, counts = np.zeros((j, among.stop), np.uint32), np.zeros(j, np.int64)
        scratch = TileScratch(q.shape[1], j, among.stop, k, self.cache.layout)
        highest_tiles(q, self.items, among, k, index, counts, seed=SEED, scratch=scratch)
        return [index[i, :n].copy() for i, n in enumerate(counts)]


def _outliers(cache) -> np.ndarray:
    """Channels of very different sizes, as rotary keys have them; zeros and a constant too."""
    rng = np.random.default_rng(1)
    k = cache.k * np.exp(2 * rng.standard_normal(cache.k.shape[2]))
    k[..., 3], k[..., 5] = 0, -2.5
    append_kv(k.astype(np.float32), cache.v, cache.segments, cache.layout, 0)
    return cache.stored()[0].astype(np.float64)


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_a_box_holds_its_keys_and_little_more(make_cache, head_dim: int, kind: str) -> None:
    cache = make_cache(head_dim, kind, "f16", 2, SEGMENT + 40)
    keys = _outliers(cache)
    boxes = Boxes(cache)
    boxes.build(0, SEGMENT + 40)
    for j in range(2):
        least, greatest, steps = (x[: TILES + 2] for x in boxes.sides(j))
        own = keys[: TILE * (TILES + 2), j].reshape(-1, TILE, head_dim)
        rounding = 1e-6 * np.linalg.norm(own, axis=2).max(1)[:, None]
        assert (least <= own.min(1) + rounding).all()
        assert (greatest >= own.max(1) - rounding).all()
        assert (least > own.min(1) - 1.001 * steps - rounding).all()
        assert (greatest < own.max(1) + 1.001 * steps + rounding).all()
        open_tile = keys[TILE * (TILES + 2) :, j]
        assert (boxes.sides(j)[0][TILES + 2] <= open_tile.min(0) + rounding.max()).all()


def bounds_of(boxes: Boxes, q, h: int) -> np.ndarray:
    """The kernel's bounds of all tiles for query head h, as its candidates have them."""
    cache, stop = boxes.cache, boxes.cache.n_tokens
    scratch = TileScratch(1, 1, stop, stop, cache.layout)
    j = h * cache.n_kv_heads // q.shape[1]
    index, counts = np.zeros((1, stop), np.uint32), np.zeros(1, np.int64)
    before = threads.n_threads()
    threads.set_threads(1)
    highest_tiles(
        np.ascontiguousarray(q[:, h : h + 1]), boxes.items + j * boxes.memory[0, 0].nbytes,
        Range(0, stop, stop), stop, index, counts, seed=SEED, scratch=scratch,
    )  # fmt: skip
    threads.set_threads(before)
    entries = scratch.candidates.entries[0, 0, : scratch.candidates.counts[0, 0]]
    bits = ~(entries >> np.uint64(32)).astype(np.uint32)
    values = np.where(bits & 0x80000000, bits ^ 0x80000000, ~bits).view(np.float32)
    out = np.full(-(-stop // TILE), np.nan)
    out[(entries & np.uint64(0xFFFFFFFF)).astype(int) // TILE] = values
    return out


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_a_bound_is_no_less_than_any_product_of_its_tile(
    make_cache, queries, head_dim: int, kind: str
) -> None:
    cache, q = make_cache(head_dim, kind, "f16", 2, 1312), queries(1, 4, head_dim)
    keys = _outliers(cache)
    boxes = Boxes(cache)
    boxes.build(0, 1305)
    for h in range(4):
        got = bounds_of(boxes, q, h)
        products = keys[:1305, h // 2] @ q[0, h].astype(np.float64)
        most = np.maximum.reduceat(products, np.arange(0, 1305, TILE))
        assert (got >= most).all()
        exact = tile_bounds_reference(q[0, h : h + 1], keys[:1296, h // 2], TILE)[0]
        _, _, steps = boxes.sides(h // 2)
        room = 1.01 * (steps[: 1296 // TILE] * np.abs(q[0, h])).sum(1)
        assert (got[:81] >= exact - 1e-5 * np.abs(exact)).all()
        assert (got[:81] <= exact + room).all()


@pytest.mark.parametrize(("heads", "n_kv_heads"), [(8, 1), (6, 2), (3, 3), (5, 1)])
@pytest.mark.parametrize(
    ("first", "last", "stop"), [(4, 2900, 3000), (0, 3000, 3000), (37, 90, 91)]
)
def test_the_highest_tiles_are_those_of_the_formula(
    make_cache, queries, heads: int, n_kv_heads: int, first: int, last: int, stop: int
) -> None:
    cache, q = make_cache(64, "q8_0", "q8_0", n_kv_heads, 3000), queries(1, heads, 64)
    boxes = Boxes(cache)
    boxes.build(0, stop)
    for tiles in (1, 3):
        got = boxes.choose(q, Range(first, last, stop), TILE * tiles + 5)
        for j in range(n_kv_heads):
            want = {*range(first), *range(last, stop)}
            for h in range(j * heads // n_kv_heads, (j + 1) * heads // n_kv_heads):
                least, greatest, _ = boxes.sides(j)
                bounds = np.maximum(q[0, h] * least, q[0, h] * greatest).sum(1)
                inside = np.arange(first // TILE, -(-last // TILE))
                for tile in inside[np.argsort(-bounds[inside])[:tiles]]:
                    want |= {t for t in range(TILE * tile, TILE * (tile + 1)) if first <= t < last}
            assert got[j].tolist() == sorted(want)


def test_equal_bounds_are_chosen_by_the_hash_of_the_position(make_cache, queries) -> None:
    cache, q = make_cache(64, "q8_0", "q8_0", 1, 3 * SEGMENT), queries(1, 4, 64)
    append_kv(np.ones_like(cache.k), cache.v, cache.segments, cache.layout, 0)
    boxes = Boxes(cache)
    boxes.build(0, 3 * SEGMENT)
    got = boxes.choose(q, Range(16, 3056, 3072), 10 * TILE)[0]
    costs = np.full((1, 3072), -1.0)
    costs[0, ::TILE] = 0  # of equal tiles, those whose first token's hash is least
    starts = largest_reference(costs, 1, (16, 3056, 3072), 10, SEED)[0]
    starts = starts[(starts >= 16) & (starts < 3056)]
    want = (starts[:, None] + np.arange(TILE)).ravel()
    np.testing.assert_array_equal(got, [*range(16), *want, *range(3056, 3072)])


def test_boxes_do_not_depend_on_how_they_were_built(make_cache) -> None:
    """Token by token, by chunks, with a tail that is overwritten: the same bytes."""
    cache = make_cache(80, "q4_0", "q4_0", 2, 1100)
    once, steps = Boxes(cache), Boxes(cache)
    once.build(0, 1100)
    steps.build(0, 1010)
    steps.build(0, 1005)
    for t in range(1005, 1040):
        steps.build(t, t + 1)
    steps.build(1030, 1100)
    np.testing.assert_array_equal(steps.memory, once.memory)
    steps.build(7, 7)
    np.testing.assert_array_equal(steps.memory, once.memory)


def test_one_thread_gives_the_same_lists(make_cache, queries) -> None:
    cache, q = make_cache(64, "f16", "f16", 2, 3000), queries(1, 8, 64)
    results = []
    for _ in with_threads(1, 2):
        boxes = Boxes(cache)
        boxes.build(0, 3000)
        results.append((boxes.memory, *boxes.choose(q, Range(4, 2900, 3000), 64)))
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


def test_refuses_in_words(make_cache, queries) -> None:
    boxes = Boxes(make_cache(64, "f16", "f16", 1, 20))
    with pytest.raises(OpsError, match="outside the 1024 stored"):
        boxes.build(0, 1025)
    for words, bad in {
        "q is": (queries(1, 2, 32), Range(0, 19, 20), 16),
        "cannot choose 11 tokens": (queries(1, 2, 64), Range(0, 10, 20), 11),
        "cannot choose 5 tokens, a tile has 16": (queries(1, 2, 64), Range(0, 19, 20), 5),
        "outside the column": (queries(1, 2, 64), Range(0, 2000, 2000), 16),
    }.items():
        with pytest.raises(OpsError, match=words):
            boxes.choose(*bad)
