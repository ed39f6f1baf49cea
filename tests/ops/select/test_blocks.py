"""Blocks of similar keys against NumPy: what is kept of them, and what is chosen with them."""

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.ops.attention.api import append_kv
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.select import (
    capped_estimates_reference,
    estimates_reference,
    largest_reference,
    sketch_reference,
)
from kvarn.ops.select import (
    BlockedKeys,
    BlockScratch,
    Frame,
    Lists,
    Range,
    Rotation,
    Wanted,
    best_in_blocks,
    block_item_bytes,
    block_keys,
)
from kvarn.ops.select.blocks.layout import BLOCK, BLOCKS
from kvarn.ops.select.blocks.scan import REACH

SEED = 5


class Blocks:
    """The column over a cache."""

    def __init__(self, cache) -> None:
        self.cache, self.rotation = cache, Rotation.random(cache.layout.head_dim, SEED)
        self.bits, n = self.rotation.bits, len(cache.segments)
        size = SEGMENT * block_item_bytes(self.bits)
        self.memory = np.zeros((n, cache.n_kv_heads, size), np.uint8)
        self.items = self.memory.ctypes.data + self.memory[0].nbytes * np.arange(n)

    def build(self, first: int, last: int) -> None:
        cache = self.cache
        block_keys(
            self.rotation, cache.segments, cache.layout, cache.n_kv_heads, self.items, first, last
        )

    def parts(self, j: int) -> tuple[np.ndarray, ...]:
        """Positions, signs, factors, means and spreads of all built tokens of KV head j, in the
        order in which they stand, as `layout` draws them."""
        n, parts = self.bits, []
        for number, raw in enumerate(self.memory[:, j]):
            ends = np.cumsum([SEGMENT * n // 8, 2 * SEGMENT, 2 * SEGMENT, n * BLOCKS, 128, 128])
            bits, factors, order, means, scales, spreads, _ = np.split(raw, ends)
            bits = bits.reshape(BLOCKS, n // 8, BLOCK).swapaxes(1, 2).reshape(SEGMENT, n // 8)
            means = means.view(np.int8).reshape(n, BLOCKS).T * scales.view("<f4")[:, None]
            parts.append(
                (
                    number * SEGMENT + order.view("<u2").astype(np.int64),
                    np.unpackbits(bits, axis=1, bitorder="little") * 2.0 - 1,
                    factors.view("<f2").astype(np.float64),
                    means.astype(np.float64),
                    spreads.view("<f4").astype(np.float64),
                )
            )
        return tuple(np.concatenate(part) for part in zip(*parts))

    def choose(self, q, among: Range, k: int, few: int) -> list[np.ndarray]:
        cache, j = self.cache, self.cache.n_kv_heads
        index, counts = np.zeros((j, among.stop), np.uint32), np.zeros(j, np.int64)
        scratch = BlockScratch(q.shape[1], j, among.stop, max(k, few), cache.layout)
        scanned = np.zeros(j, np.int64)
        best_in_blocks(
            q,
            BlockedKeys(
                cache.segments, self.items, self.rotation, Frame.plain(j, cache.layout.head_dim)
            ),
            among,
            Wanted(k, few, SEED),
            Lists(index, counts),
            scanned,
            scratch=scratch,
        )
        self.looked = int(scanned.sum())
        return [index[i, :n].copy() for i, n in enumerate(counts)]


@pytest.fixture
def alike(make_cache):
    """A cache whose keys differ mostly along three directions, in random order."""

    def make(n_tokens: int, n_kv_heads: int = 1, lengths=1.0):
        cache = make_cache(64, "q8_0", "q8_0", n_kv_heads, n_tokens)
        rng = np.random.default_rng(3)
        wide, directions = (
            rng.standard_normal((n_tokens, n_kv_heads, 4)),
            rng.standard_normal((4, 64)),
        )
        k = (0.6 * wide @ directions + 0.2 * cache.k) * np.reshape(lengths, (-1, 1, 1))
        append_kv(k.astype(np.float32), cache.v, cache.segments, cache.layout, 0)
        return cache

    return make


@pytest.mark.parametrize(("head_dim", "kind"), [(64, "q8_0"), (80, "q4_0"), (256, "f16")])
def test_what_is_kept_of_stored_keys(make_cache, head_dim: int, kind: str) -> None:
    cache = make_cache(head_dim, kind, kind, 2, 2 * SEGMENT)
    blocks = Blocks(cache)
    blocks.build(0, 1)
    blocks.build(1, 2)
    keys, n = cache.stored()[0].astype(np.float64), blocks.bits
    rotation = blocks.rotation.weights[: n * n].reshape(n, n)
    for j in range(2):
        positions, signs, factors, means, spreads = blocks.parts(j)
        assert (
            np.sort(positions.reshape(2, SEGMENT)) == np.arange(2 * SEGMENT).reshape(2, -1)
        ).all()
        padded = np.zeros((len(positions), n))
        padded[:, :head_dim] = keys[positions, j]
        exact = padded.reshape(-1, BLOCK, n).mean(1)
        steps = np.abs(exact).max(1, keepdims=True) / 127
        assert (np.abs(means - exact) <= 0.51 * steps).all()
        rest = padded - np.repeat(means, BLOCK, 0)
        want = np.sqrt((rest.reshape(-1, BLOCK, n) ** 2).sum(2).mean(1))
        np.testing.assert_allclose(spreads, want, rtol=1e-5)
        want_signs, want_factors = sketch_reference(rest, rotation)
        assert (
            signs == want_signs
        ).mean() > 0.999  # a sum within rounding of 0 may fall either way
        np.testing.assert_allclose(factors, want_factors, rtol=2e-3)


def test_blocks_hold_keys_that_are_alike(alike) -> None:
    blocks = Blocks(cache := alike(4 * SEGMENT))
    blocks.build(0, 4)
    positions, *_, spreads = blocks.parts(0)
    keys = cache.stored()[0][:, 0]
    in_order = keys.reshape(-1, BLOCK, 64)
    around = np.sqrt(((in_order - in_order.mean(1, keepdims=True)) ** 2).sum(2).mean(1))
    assert spreads.mean() < 0.75 * around.mean()
    # A part is split in the middle of its projections: both halves of a segment differ in one.
    halves = keys[positions].reshape(-1, 2, SEGMENT // 2, 64)
    for upper, lower in halves:
        cloud = np.concatenate([upper, lower])
        centred = cloud - cloud.mean(0)
        start = centred[(centred**2).sum(1).argmax()]
        for _ in range(2):
            start = centred.T @ (centred @ start)
        assert (upper @ start).min() >= (lower @ start).max() * (1 - 1e-3) - 1e-3


def _check_choice(blocks, q, first: int, last: int, k: int) -> None:
    """With as many candidates as tokens wanted, the list is that of the formula's estimates."""
    n_tokens = blocks.cache.n_tokens
    positions, *parts = blocks.parts(0)
    matrix = blocks.rotation.weights[: 64 * 64].reshape(64, 64)
    n = n_tokens // SEGMENT * SEGMENT
    signs, factors, means, spreads = (
        part[: n // (1 if i < 2 else BLOCK)] for i, part in enumerate(parts)
    )
    estimates = np.full((1, n), -np.inf)
    estimates[0, positions[:n]] = capped_estimates_reference(
        q[0].astype(np.float64), signs, factors, means, spreads, matrix, REACH
    )
    got = blocks.choose(q, Range(first, last, n_tokens), k, k)[0]
    want = largest_reference(estimates, 1, first, last, n_tokens, k, SEED)[0]
    assert len(got) == len(want)
    assert len(np.intersect1d(got, want)) > 0.95 * len(want)  # tables are rounded to int8


@pytest.mark.parametrize("n_tokens", [SEGMENT, 5 * SEGMENT, 20 * SEGMENT + 300])
def test_the_capped_estimates_choose_the_candidates(alike, queries, n_tokens: int) -> None:
    blocks, full = Blocks(alike(n_tokens)), n_tokens // SEGMENT
    blocks.build(0, full)
    _check_choice(blocks, queries(1, 1, 64), 3, min(full * SEGMENT, n_tokens - 20), 200)


def test_a_sample_that_misleads_loses_nothing(alike, queries, misleading) -> None:
    n = len(misleading)
    blocks = Blocks(alike(n, 1, misleading))
    blocks.build(0, n // SEGMENT)
    _check_choice(blocks, queries(1, 1, 64), 0, n, 1000)


def test_equal_estimates_are_chosen_by_the_hash_of_the_position(make_cache, queries) -> None:
    cache, q = make_cache(64, "q8_0", "q8_0", 1, 3 * SEGMENT), queries(1, 4, 64)
    append_kv(np.ones_like(cache.k), cache.v, cache.segments, cache.layout, 0)
    blocks = Blocks(cache)
    blocks.build(0, 3)
    got = blocks.choose(q, Range(4, 3000, 3072), 50, 50)[0]
    scores = np.zeros((4, 3072))
    want = largest_reference(scores, 1, 4, 3000, 3072, 50, SEED)[0]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("heads", "n_kv_heads", "stored"), [(8, 2, 3000), (1, 1, 2048), (1, 1, 700), (16, 2, 1025)]
)
def test_all_candidates_give_the_exact_choice(
    alike, queries, heads: int, n_kv_heads: int, stored: int
) -> None:
    cache, q = alike(3000, n_kv_heads), queries(1, heads, 64)
    blocks = Blocks(cache)
    blocks.build(0, stored // SEGMENT)
    keys, _ = cache.stored()
    scores = np.stack([keys[:, h * n_kv_heads // heads] @ q[0, h] for h in range(heads)])
    got = blocks.choose(q, Range(4, stored - 90, stored), 20, 3000)
    for a, b in zip(got, largest_reference(scores, n_kv_heads, 4, stored - 90, stored, 20, SEED)):
        assert len(np.setxor1d(a, b)) <= 2  # float32 sums of nearly equal scores


def test_most_blocks_are_ruled_out_and_little_mass_is_lost(alike) -> None:
    """Over 80 query heads: of one alone, chance would decide (it finds 0.70 to 0.97)."""
    n, k, rng = 96 * SEGMENT, 60, np.random.default_rng(11)
    shares, looked = [], []
    cache = alike(n)
    blocks = Blocks(cache)
    blocks.build(0, 96)
    keys = cache.stored()[0][:, 0]
    for _ in range(20):
        q = rng.standard_normal((1, 4, 64)).astype(np.float32)
        got = blocks.choose(q, Range(0, n - 1, n), k, 3 * k)[0]
        looked.append(blocks.looked)
        for mass in np.exp(q[0] @ keys.T / 8):
            shares.append(np.sort(mass[got])[-k:].sum() / np.sort(mass)[-k:].sum())
    assert np.mean(shares) > 0.88
    assert np.mean(looked) < 0.6 * 4 * 96 * BLOCKS


def test_sketches_from_a_mean_find_more_than_those_from_zero(alike, queries) -> None:
    n, k = 8 * SEGMENT, 80
    cache, q = alike(n), queries(1, 1, 64)
    blocks = Blocks(cache)
    blocks.build(0, 8)
    keys, matrix = cache.stored()[0][:, 0], blocks.rotation.weights[: 64 * 64].reshape(64, 64)
    plain = estimates_reference(q[0], *sketch_reference(keys, matrix), matrix)
    best = largest_reference(keys[None] @ q[0, 0], 1, 0, n - 1, n, k, SEED)[0]
    chosen = blocks.choose(q, Range(0, n - 1, n), k, k)[0]
    from_zero = largest_reference(plain, 1, 0, n - 1, n, k, SEED)[0]
    assert len(np.intersect1d(best, chosen)) > len(np.intersect1d(best, from_zero)) + 0.1 * k


def test_one_thread_gives_the_same_lists(alike, queries) -> None:
    if threads.max_threads() < 2:
        pytest.skip("one thread is all there is")
    cache, q = alike(3000, 2), queries(1, 8, 64)
    before, results = threads.n_threads(), []
    for n in (1, 2):
        threads.set_threads(n)
        blocks = Blocks(cache)
        blocks.build(0, 2)
        results.append((blocks.memory, *blocks.choose(q, Range(4, 2900, 3000), 20, 60)))
    threads.set_threads(before)
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


def test_refuses_in_words(make_cache, queries) -> None:
    blocks = Blocks(make_cache(64, "f16", "f16", 1, 20))
    with pytest.raises(OpsError, match="outside the 1 stored"):
        blocks.build(0, 2)
    for words, bad in {
        "q is": (queries(1, 2, 32), Range(0, 19, 20), 5, 10),
        "cannot choose 11 tokens": (queries(1, 2, 64), Range(0, 10, 20), 11, 11),
        "cannot choose 5 of 4": (queries(1, 2, 64), Range(0, 19, 20), 5, 4),
        "outside the columns": (queries(1, 2, 64), Range(0, 20, 2000), 5, 10),
    }.items():
        with pytest.raises(OpsError, match=words):
            blocks.choose(*bad)
