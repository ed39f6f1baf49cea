"""Means of blocks against NumPy: what is kept of them, and what they add to attention."""

import numpy as np
import pytest

from kvarn.ops.attention.api import append_kv
from kvarn.ops.attention.arguments import Scoring
from kvarn.ops.attention.decode.gathered import GatheredScratch, gathered_attention
from kvarn.ops.attention.layout import SEGMENT, TILE
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.errors import OpsError
from kvarn.ops.select import (
    MeansScratch,
    add_means,
    block_means,
    means_item_bytes,
)

from ...thread_counts import with_threads

BLOCK = BLOCKS = 32
TOLERANCE = 5e-6  # as dense attention


class Means:
    """The column over the full segments of a cache."""

    def __init__(self, cache) -> None:
        self.cache, n = cache, cache.n_tokens // SEGMENT
        head_bytes = SEGMENT * means_item_bytes(cache.layout.head_dim)
        self.means = np.zeros((n, cache.n_kv_heads, head_bytes), np.uint8)
        self.items = self.means.ctypes.data + cache.n_kv_heads * head_bytes * np.arange(n)
        for first, stop in ((0, n // 2), (n // 2, n)):
            block_means(cache.segments, cache.layout, cache.n_kv_heads, self.items, first, stop)

    def order(self, j: int) -> np.ndarray:
        """The tokens of each block of KV head j (blocks, 32), as the column says."""
        blocks = self.stored(j)[2].astype(np.int64)
        assert (np.sort(blocks) == np.repeat(np.arange(BLOCKS), BLOCK)).all()
        tokens = np.argsort(blocks, kind="stable") + SEGMENT * np.arange(len(blocks))[:, None]
        return tokens.reshape(-1, BLOCK)

    def stored(self, j: int):
        """Mean keys and values (blocks, padded) and the block of each token, as `layout` draws."""
        padded, sides = self.cache.layout.padded, 1 if self.cache.layout.padded > 512 else 2
        n_scales = padded // 32
        tile_bytes = -(-TILE * sides * (padded + 2 * n_scales) // 64) * 64
        raw = self.means[:, j]
        tiles = np.ascontiguousarray(raw[:, : 2 * tile_bytes]).reshape(-1, tile_bytes)
        end = sides * TILE * padded
        rows = tiles[:, :end].view(np.int8).astype(np.float32)
        scales = np.ascontiguousarray(tiles[:, end:][:, : 2 * sides * TILE * n_scales])
        scales = scales.view("<f2").astype(np.float32).reshape(-1, TILE, sides, n_scales)
        rows = rows.reshape(-1, sides, TILE, n_scales, 32) * np.moveaxis(scales, 2, 1)[..., None]
        keys, values = np.moveaxis(rows.reshape(-1, sides, TILE, padded), 1, 0)[[0, -1]]
        blocks = raw[:, 2 * tile_bytes :][:, :SEGMENT]
        return keys.reshape(-1, padded), values.reshape(-1, padded), blocks

    def attend(self, q, index, counts, *, scale=0.2, softcap=0.0) -> np.ndarray:
        cache, heads = self.cache, q.shape[1]
        out, layout = np.full_like(q, np.nan), cache.layout
        softmax = Softmax(scale, softcap)
        gathered = GatheredScratch(heads, cache.n_kv_heads, layout, index.shape[1])
        gathered_attention(q, index, counts, cache.segments, out, softmax=softmax, scratch=gathered)
        self.before = out.copy()
        scratch = MeansScratch(heads, cache.n_kv_heads, layout.head_dim, cache.n_tokens)
        add_means(
            q, index, counts, self.items, out, scoring=softmax.scoring,
            masses=gathered.masses, scratch=scratch,
        )  # fmt: skip
        return out

    def formula(self, q, index, counts, *, scale=0.2, softcap=0.0) -> np.ndarray:
        """One softmax over the listed tokens and, weighed by what is left, the stored means."""
        keys, values = (x.astype(np.float64) for x in self.cache.stored())
        out, group = np.empty(q.shape), q.shape[1] // self.cache.n_kv_heads
        for h in range(q.shape[1]):
            j, x = h // group, q[0, h].astype(np.float64)
            listed = index[j, : counts[j]]
            left = (~np.isin(self.order(j), listed)).sum(1)
            mean_keys, mean_values, _ = self.stored(j)
            on, n = left > 0, self.cache.layout.head_dim
            s = np.r_[keys[listed, j] @ x, mean_keys[on, :n] @ x] * scale
            s = softcap * np.tanh(s / softcap) if softcap else s
            s += np.log(np.r_[np.ones(len(listed)), left[on]])
            p = np.exp(s - s.max())
            out[0, h] = p @ np.r_[values[listed, j], mean_values[on, :n]] / p.sum()
        return out


def _lists(n_kv_heads: int, n_tokens: int, counts: list[int]):
    rng, index = np.random.default_rng(3), np.zeros((n_kv_heads, n_tokens), np.uint32)
    for j, n in enumerate(counts):
        index[j, :n] = np.sort(rng.choice(n_tokens, n, replace=False))
    return index, np.array(counts)


@pytest.mark.parametrize(
    ("head_dim", "k", "v"),
    [(64, "q8_0", "q8_0"), (80, "q4_0", "f16"), (256, "f16", "q4_0"), (576, "q4_0", "q4_0")],
)
def test_what_is_kept(make_cache, head_dim: int, k: str, v: str) -> None:
    means = Means(make_cache(head_dim, k, v, 2, 2 * SEGMENT))
    keys, values = means.cache.stored()
    for j in range(2):
        order = means.order(j)
        for got, rows in zip(means.stored(j), (keys, values)):
            exact = np.zeros(got.shape)
            exact[:, :head_dim] = rows[order, j].astype(np.float64).mean(1)
            steps = np.abs(exact.reshape(len(exact), -1, 32)).max(2, keepdims=True) / 127
            off = np.abs(got - exact).reshape(len(exact), -1, 32)
            assert (off <= 0.57 * steps + 1e-7).all()  # half a step, and the scale's f16


@pytest.mark.parametrize("head_dim", [64, 80])
def test_blocks_hold_keys_that_are_alike(make_cache, head_dim: int) -> None:
    """Of keys that differ mostly along four directions: a segment is split in the middle of their
    projections on the widest, as two steps of the power method find it, and so is each half."""
    n, rng = 4 * SEGMENT, np.random.default_rng(3)
    cache = make_cache(head_dim, "q8_0", "q8_0", 1, n)
    wide = rng.standard_normal((n, 1, 4)) @ rng.standard_normal((4, head_dim))
    k = (0.6 * wide + 0.2 * cache.k).astype(np.float32)
    append_kv(k, cache.v, cache.segments, cache.layout, 0)
    order, keys = Means(cache).order(0), cache.stored()[0][:, 0].astype(np.float64)

    def spread(blocks: np.ndarray) -> float:
        return float(np.sqrt(blocks.var(1).sum(1)).mean())

    assert spread(keys[order]) < 0.75 * spread(keys.reshape(-1, BLOCK, head_dim))
    size = SEGMENT
    while size > BLOCK:
        for halves in keys[order].reshape(-1, 2, size // 2, head_dim):
            cloud = halves.reshape(-1, head_dim)
            centred = cloud - cloud.mean(0)
            start = centred[(centred**2).sum(1).argmax()]
            for _ in range(2):
                start = centred.T @ (centred @ start)
            upper, lower = halves @ start
            assert upper.min() >= lower.max() * (1 - 1e-3) - 1e-3
        size //= 2


@pytest.mark.parametrize(
    ("head_dim", "k", "v", "heads", "kv_heads", "n_tokens"),
    [
        (64, "f16", "f16", 8, 2, 2 * SEGMENT + 100),
        (96, "q8_0", "q4_0", 1, 1, SEGMENT),
        (128, "q4_0", "q8_0", 6, 2, 3 * SEGMENT + 1),
        (80, "q4_0", "f16", 5, 1, 34 * SEGMENT),
        (576, "f16", "f16", 4, 1, 2 * SEGMENT + 5),
    ],
)
def test_means_count_for_what_is_not_listed(
    make_cache, queries, head_dim, k, v, heads, kv_heads, n_tokens
) -> None:
    means, q = Means(make_cache(head_dim, k, v, kv_heads, n_tokens)), queries(1, heads, head_dim)
    q *= min(1.0, 300 / head_dim)  # longer ones look at single tokens
    tolerance = TOLERANCE * max(1.0, head_dim / 256)  # rounding of a score grows with its terms
    for lengths in ([1, 17], [n_tokens // 2, 300]):
        lists = _lists(kv_heads, n_tokens, lengths[:kv_heads])
        for options in ({}, {"softcap": 2.0}, {"scale": 1.5}):
            got = means.attend(q, *lists, **options)
            want = means.formula(q, *lists, **options)
            assert np.abs(got - want).max() < tolerance
            if not options:  # with a large scale, what was chosen may be all that counts
                assert np.abs(means.before - want).max() > 100 * TOLERANCE


def test_all_listed_keeps_the_bits(make_cache, queries) -> None:
    means, q = Means(make_cache(64, "f16", "f16", 2, 2500)), queries(1, 8, 64)
    index, counts = _lists(2, 2500, [2500, 2500])
    got = means.attend(q, index, counts)
    np.testing.assert_array_equal(got, means.before)
    # So does a context without a full segment.
    means = Means(make_cache(64, "f16", "f16", 2, 700))
    got = means.attend(q, *_lists(2, 700, [20, 30]))
    np.testing.assert_array_equal(got, means.before)


def test_equal_keys_and_values_give_exact_attention(make_cache, queries) -> None:
    """Where the tokens of a block do not differ, its mean is no estimate."""
    cache, q = make_cache(64, "q8_0", "q8_0", 1, SEGMENT), queries(1, 4, 64)
    kinds = np.random.default_rng(1).integers(0, 127, (BLOCKS, 2, 1, 64)).astype(np.float32) / 127
    kinds[..., ::32] = 1  # elements of q8_0 without an error
    of = np.random.default_rng(2).permutation(np.repeat(np.arange(BLOCKS), BLOCK))
    k, v = np.moveaxis(kinds[of], 1, 0)
    append_kv(np.ascontiguousarray(k), np.ascontiguousarray(v), cache.segments, cache.layout, 0)
    means = Means(cache)
    pure = (of[means.order(0)] == of[means.order(0)][:, :1]).all()
    got = means.attend(q, *_lists(1, SEGMENT, [7]))
    want = cache.attend(q, SEGMENT - 1, scale=0.2)
    assert pure
    assert np.abs(got - want).max() < TOLERANCE


def test_one_thread_gives_the_same_bits(make_cache, queries) -> None:
    cache, q = make_cache(64, "q8_0", "q8_0", 2, 35 * SEGMENT), queries(1, 8, 64)
    lists = _lists(2, cache.n_tokens, [1500, 700])
    results = []
    for _ in with_threads(1, 2):
        means = Means(cache)
        results.append((means.means, means.attend(q, *lists)))
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


def test_refuses_in_words(make_cache, queries) -> None:
    cache = make_cache(64, "f16", "f16", 2, 20)
    with pytest.raises(OpsError, match="outside the 0 stored"):
        block_means(cache.segments, cache.layout, 2, np.zeros(0, int), 0, 1)
    q, (index, counts) = queries(1, 8, 64), _lists(2, 20, [5, 6])
    items, masses = np.zeros(0, np.int64), np.zeros((8, 2), np.float32)
    for words, bad in {
        "means: q is": (queries(1, 4, 64), index, counts, items, masses),
        "lists are int64": (q, index.astype(np.int64), counts, items, masses),
        "masses is": (q, index, counts, items, masses[:4]),
        "1 segments, there is room for 0": (q, index, counts, np.zeros(1, np.int64), masses),
    }.items():
        q_, index_, counts_, items_, masses_ = bad
        with pytest.raises(OpsError, match=words):
            add_means(
                q_, index_, counts_, items_, np.empty_like(q_), scoring=Scoring(1.0, 0.0),
                masses=masses_, scratch=MeansScratch(8, 2, 64, 20),
            )  # fmt: skip
