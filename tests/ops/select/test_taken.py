"""Tokens that are read without competing, others in each KV head: NumPy's sort of all the rest."""

import numpy as np
import pytest

from kvarn.ops.attention.api import append_kv
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.errors import OpsError
from kvarn.ops.evict import outside
from kvarn.ops.reference.select import largest_reference, nearest_reference
from kvarn.ops.select import (
    ExactScratch,
    Frame,
    Lists,
    Network,
    Range,
    Rotation,
    SignatureScratch,
    SketchedKeys,
    SketchScratch,
    Wanted,
    best_sketched,
    encode_keys,
    encode_slots,
    largest,
    nearest,
    simhash_network,
    sketch_keys,
    sketch_slots,
    taken_words,
)

SEED = 20_240_517
SIZES = [(1, 1, 0), (70, 16, 20), (1024, 40, 1), (1100, 300, 300), (6100, 30, 260)]


def bits_of(taken: np.ndarray) -> np.ndarray:
    """bool (J, S) as uint64 (J, words)."""
    padded = np.zeros((len(taken), 64 * taken_words(taken.shape[1])), np.bool_)
    padded[:, : taken.shape[1]] = taken
    return np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.uint64)


def some_taken(rng, n_kv_heads: int, n: int, count: int) -> np.ndarray:
    """In each KV head other ones, and the first and last among them."""
    taken = np.zeros((n_kv_heads, n), np.bool_)
    for of_head in taken:
        of_head[rng.choice(n, count, replace=False)] = True
    return taken


def lists_for(n_kv_heads: int, room: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((n_kv_heads, room), np.uint32), np.zeros(n_kv_heads, np.int64)


def column(n: int, n_kv_heads: int, item: tuple[int, ...], kind: type) -> tuple:
    memory = np.zeros((-(-n // SEGMENT), n_kv_heads, SEGMENT, *item), kind)
    return memory, memory.ctypes.data + memory[0].nbytes * np.arange(len(memory))


@pytest.mark.parametrize(("n", "k", "count"), SIZES)
@pytest.mark.parametrize(("head_dim", "heads", "n_kv_heads"), [(32, 8, 2), (64, 3, 3)])
def test_products(
    make_cache, head_dim: int, heads: int, n_kv_heads: int, n: int, k: int, count: int
) -> None:
    """Of all keys, and of candidates by sketches where all are candidates."""
    cache, rng = make_cache(head_dim, "f16", "f16", n_kv_heads, n), np.random.default_rng(n)
    cache.k[:] = rng.integers(-3, 4, cache.k.shape)  # exact in f16
    append_kv(cache.k, cache.v, cache.segments, cache.layout, 0)
    q = rng.integers(-2, 3, (1, heads, head_dim)).astype(np.float32)
    scores = np.stack([cache.k[:, h * n_kv_heads // heads] @ q[0, h] for h in range(heads)])
    taken = some_taken(rng, n_kv_heads, n, count)
    among, bits = Range(0, n, n), bits_of(taken)
    want = largest_reference(scores, n_kv_heads, among, k, SEED, taken)
    index, counts = lists_for(n_kv_heads, n)
    exact = ExactScratch(heads, n_kv_heads, n, k, cache.layout)
    lists, wanted = Lists(index, counts), Wanted(k, k, SEED)
    largest(q, cache.segments, among, wanted, lists, taken=bits, scratch=exact)
    for j in range(n_kv_heads):
        np.testing.assert_array_equal(index[j, : counts[j]], want[j])
    rotation = Rotation.random(head_dim, SEED)
    _sketches, places = column(n, n_kv_heads, (8,), np.uint8)
    _factors, factors = column(n, n_kv_heads, (), np.float16)
    keys = SketchedKeys(
        cache.segments, places, factors, rotation, Frame.plain(n_kv_heads, head_dim)
    )
    sketch_keys(keys, cache.layout, 0, n)
    index[:], counts[:] = 0, 0
    best_sketched(
        q,
        keys,
        among,
        Wanted(k, n - count, SEED),
        Lists(index, counts),
        taken=bits,
        scratch=SketchScratch(heads, n_kv_heads, n, n, cache.layout),
    )
    for j in range(n_kv_heads):
        np.testing.assert_array_equal(index[j, : counts[j]], want[j])


def test_few_candidates_by_sketches_are_those_of_the_rest(make_cache, queries) -> None:
    """With samples, and keys that are taken the best by far: as if these stood before the range."""
    n, k, count = 20 * SEGMENT, 50, 300
    q, rng = queries(1, 4, 64), np.random.default_rng(0)
    taken = some_taken(rng, 1, n, count)
    first = np.concatenate([np.flatnonzero(taken[0]), np.flatnonzero(~taken[0])])
    keys = rng.standard_normal((n, 1, 64)).astype(np.float32)
    keys[taken[0], 0] = 3 * q[0].sum(0)
    chosen = []
    for order, among, bits in (
        (np.arange(n), Range(0, n, n), bits_of(taken)),
        (first, Range(count, n, n), None),
    ):
        cache = make_cache(64, "q8_0", "q8_0", 1, n)
        append_kv(keys[order], cache.v, cache.segments, cache.layout, 0)
        rotation = Rotation.random(64, SEED)
        _sketches, places = column(n, 1, (8,), np.uint8)
        _factors, factors = column(n, 1, (), np.float16)
        stored = SketchedKeys(cache.segments, places, factors, rotation, Frame.plain(1, 64))
        sketch_keys(stored, cache.layout, 0, n)
        index, counts = lists_for(1, count + 4 * k)
        best_sketched(
            q,
            stored,
            among,
            Wanted(k, 4 * k, SEED),
            Lists(index, counts),
            taken=bits,
            scratch=SketchScratch(4, 1, n, 4 * k, cache.layout),
        )
        chosen.append(np.sort(order[index[0, : counts[0]]]))
    assert count + k <= len(chosen[0])
    np.testing.assert_array_equal(*chosen)


@pytest.mark.parametrize(("n", "k", "count"), [*SIZES, (40 * SEGMENT + 7, 500, 3000)])
@pytest.mark.parametrize("bits", [32, 64])
def test_signatures(bits: int, n: int, k: int, count: int) -> None:
    rng, n_kv_heads, group = np.random.default_rng(n), 2, {32: 4, 64: 3}[bits]
    words = rng.integers(0, 1 << bits, (n_kv_heads, n + group), dtype=np.uint64)
    queries, signatures = words[:, :group].copy(), words[:, group:].copy()
    taken = some_taken(rng, n_kv_heads, n, count)
    near = rng.random((n_kv_heads, n)) < 0.7  # most of those taken are the nearest
    signatures[taken & near] = queries[0, 0]
    memory, items = column(n, n_kv_heads, (), np.dtype(f"u{bits // 8}"))
    padded = np.zeros((n_kv_heads, len(memory) * SEGMENT), memory.dtype)
    padded[:, :n] = signatures
    memory[:] = padded.reshape(n_kv_heads, -1, SEGMENT).swapaxes(0, 1)
    index, counts = lists_for(n_kv_heads, n)
    nearest(
        queries, items, bits, Range(0, n, n), Wanted(k, k, SEED), Lists(index, counts),
        taken=bits_of(taken), scratch=SignatureScratch(n_kv_heads * group, n_kv_heads, n, k),
    )  # fmt: skip
    want = nearest_reference(queries, signatures, bits, (0, n, n), k, SEED, taken)
    for j in range(n_kv_heads):
        np.testing.assert_array_equal(index[j, : counts[j]], want[j])


def test_refuses_in_words() -> None:
    scratch, queries = SignatureScratch(2, 1, 100, 50), np.zeros((1, 2), np.uint64)
    _column, items = column(100, 1, (), np.uint32)
    index, counts = lists_for(1, 60)

    def call(taken: np.ndarray, k: int) -> None:
        nearest(
            queries, items, 32, Range(0, 100, 100), Wanted(k, k, 0), Lists(index, counts),
            taken=taken, scratch=scratch,
        )  # fmt: skip

    taken = bits_of(np.arange(100)[None] < 70)
    for words, bad in {
        "cannot choose 31 tokens, expected 1 to 30": (taken, 31),
        "100 or more": (taken, 30),
        r"expected uint64 \(1, 16 or more\)": (taken[:, :4], 10),
        r"is int64 .*, expected uint64": (taken.view(np.int64), 10),
    }.items():
        with pytest.raises(OpsError, match=words):
            call(*bad)


@pytest.mark.parametrize("n", [1, 15, 64, 1000, 1025, 3000])
def test_slots_outside_a_range_of_positions(n: int) -> None:
    rng = np.random.default_rng(n)
    memory, items = column(n, 3, (), np.uint32)
    positions = np.stack([rng.permutation(2 * n)[:n] for _ in range(3)])
    positions[0, 0] = (1 << 31) - 2
    padded = np.zeros((3, len(memory) * SEGMENT), np.uint32)
    padded[:, :n] = positions
    memory[:] = padded.reshape(3, -1, SEGMENT).swapaxes(0, 1)
    for first, last in ((0, 2 * n), (n // 3, n), (n // 2, n // 2), (n, (1 << 31) - 2)):
        bits = np.full((3, taken_words(n)), ~np.uint64(0))
        outside(items, n, first, last, bits)
        want = (positions < first) | (positions >= last)
        got = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")
        np.testing.assert_array_equal(got[:, : -(-n // 64) * 64].sum(1), want.sum(1))
        np.testing.assert_array_equal(got[:, :n], want)
    with pytest.raises(OpsError, match="expected a bit for each slot"):
        outside(items, n, 0, 1, np.zeros((3, 0), np.uint64))


@pytest.mark.parametrize("kind", ["f16", "q4_0"])
def test_single_slots_are_indexed_as_all_are(make_cache, kind: str) -> None:
    """Bytes of signatures and sketches, of slots that are named, and of no others."""
    n, n_kv_heads, rng = 1500, 3, np.random.default_rng(1)
    cache = make_cache(80, kind, kind, n_kv_heads, n)
    network: Network = simhash_network(rng.standard_normal((80, 32)).astype(np.float32))
    rotation = Rotation.random(80, SEED)
    widths = [((4,), np.uint8), ((16,), np.uint8), ((), np.float16)]
    columns = [[column(n, n_kv_heads, *one) for one in widths] for _ in range(2)]
    whole, some = ([places for _, places in one] for one in columns)
    encode_keys(network, cache.segments, cache.layout, n_kv_heads, whole[0], 0, n)
    frame = Frame.plain(n_kv_heads, 80)
    keys = [SketchedKeys(cache.segments, *x[1:], rotation, frame) for x in (whole, some)]
    sketch_keys(keys[0], cache.layout, 0, n)
    for n_tokens in (1, 40):
        slots = rng.integers(0, n, (n_kv_heads, 64)).astype(np.int32)
        slots[:, 1] = slots[:, 0]
        encode_slots(network, cache.segments, cache.layout, some[0], slots, n_tokens)
        sketch_slots(keys[1], cache.layout, slots, n_tokens)
        named = np.zeros((n_kv_heads, len(cache.segments) * SEGMENT), np.bool_)
        for of_head, these in zip(named, slots[:, :n_tokens]):
            of_head[these] = True
        picked = named.reshape(n_kv_heads, -1, SEGMENT).swapaxes(0, 1)
        for (want, _), (got, _) in zip(*columns):
            np.testing.assert_array_equal(got[picked], want[picked])
            assert not got[~picked].any()
            got[:] = 0
    for words, bad in {
        "lie outside the 2048": (np.full((3, 1), 2048, np.int32), 1),
        "expected int32": (slots, 65),
    }.items():
        with pytest.raises(OpsError, match=words):
            encode_slots(network, cache.segments, cache.layout, some[0], *bad)
