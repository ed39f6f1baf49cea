"""What is chosen by sketches, against `ops`, bit for bit, and the formula in NumPy."""

import numpy as np
import pytest
import torch

from kvarn.cuda_ops.errors import CudaOpsError
from kvarn.cuda_ops.select.sketch import (
    Frames,
    Rotation,
    SketchScratch,
    best_sketched,
    choice,
)
from kvarn.ops import select as ops
from kvarn.ops.attention import TileLayout
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.reference.attention import read_kv
from kvarn.ops.reference.select import position_hash_reference
from kvarn.ops.select.queries import RANGE

from .sketched import SEED, Cache, costs_of, frame_of, keys_of, queries_of, sampled


@pytest.mark.parametrize(
    ("head_dim", "kind", "kv_heads", "group", "among", "k", "few"),
    [
        (64, "f16", 1, 1, (0, 1, 1), 1, 1),
        (64, "q8_0", 2, 3, (3, 70, 75), 16, 33),
        (96, "f16", 1, 8, (0, 1024, 1024), 100, 200),
        (80, "q4_0", 2, 2, (15, 1023, 1025), 17, 17),
        (128, "f16", 1, 4, (128, 1025, 1100), 5, 400),
        (256, "q8_0", 1, 1, (4, 1500, 1600), 20, 40),
        (24, "q4_0", 1, 5, (0, 300, 301), 299, 300),
        (64, "q8_0", 1, 1, (0, 200, 200), 150, 170),  # the last of them below 0
    ],
)
def test_lists_are_those_of_the_formula(
    device, head_dim, kind, kv_heads, group, among, k, few
) -> None:
    n, heads = among[2], kv_heads * group
    cache = Cache(device, keys_of(n, n, kv_heads, head_dim), kind)
    cache.sketch(0, n)
    cache.check(queries_of(n, heads, head_dim), ops.Range(*among), ops.Wanted(k, few, SEED))


@pytest.mark.parametrize(
    ("head_dim", "kind", "kv_heads", "group", "zeros"),
    [(64, "q8_0", 2, 8, 1), (64, "q8_0", 1, 4, 2), (64, "q8_0", 1, 4, 0), (80, "q4_0", 1, 3, 3)],
)
def test_lists_are_those_of_ops(device, head_dim, kind, kv_heads, group, zeros) -> None:
    """Without zeros, with every second key of zeros, every third, or all."""
    n = 1100
    keys, q = keys_of(6, n, kv_heads, head_dim), queries_of(6, kv_heads * group, head_dim)
    keys[:: zeros or n] *= 0.0
    cache = Cache(device, keys, kind)
    cache.sketch(0, n)
    for k, few in ((7, 20), (600, 650)):
        cache.check(q, ops.Range(2, n - 9, n), ops.Wanted(k, few, SEED), from_ops=True)


@pytest.mark.parametrize(("head_dim", "kind"), [(64, "f16"), (96, "q8_0")])
def test_products_have_the_bits_of_the_order_of_ops(device, fused, head_dim, kind) -> None:
    """16 sums, then those 8 apart, 4 apart, and neighbours."""
    n, q, keys = 40, -np.abs(queries_of(14, 1, head_dim)), keys_of(14, 40, 1, head_dim)
    keys[7] = 0  # its products with numbers below 0 are -0, and so is their sum
    cache = Cache(device, keys, kind)
    cache.sketch(0, n)
    scratch = SketchScratch(1, 1, n, n, cache.layout, device=device)
    cache.on_gpu(q, ops.Range(0, n, n), ops.Wanted(9, n, SEED), scratch)
    entries = (
        scratch.search.candidates.scored[0, : scratch.search.candidates.n_tokens.item()]
        .cpu()
        .numpy()
    )
    stored = read_kv(cache.places, cache.layout, 1, 0, n)[0][:, 0].astype(np.float32)
    sums = np.full((n, 16), -0.0, np.float32)
    for e in range(0, head_dim, 16):
        sums = fused(stored[:, e : e + 16], np.broadcast_to(q[0, :, e : e + 16], sums.shape), sums)
    for apart in (8, 4):
        sums = sums[:, :apart] + sums[:, apart:]
    sums = sums[:, ::2] + sums[:, 1::2]
    order = np.argsort(entries & 0xFFFFFFFF)
    np.testing.assert_array_equal(entries[order] & 0xFFFFFFFF, np.arange(n))
    costs = (entries[order] >> 32) & 0xFFFFFFFF
    np.testing.assert_array_equal(costs, costs_of(sums[:, 0] + sums[:, 1]))


def test_a_sample_gives_the_first_limits(device) -> None:
    """And few more tokens than wanted become candidates."""
    n, k = 9500, 60
    cache = Cache(device, keys_of(3, n, 1, 64), "q8_0")
    cache.frame = frame_of(1, 64)
    cache.sketch(0, n)
    scratch = SketchScratch(4, 1, n, 2 * k, cache.layout, device=device)
    cache.check(queries_of(3, 4, 64), ops.Range(4, 9400, n), ops.Wanted(k, 2 * k, SEED), scratch)
    counts = scratch.search.candidates.counts.cpu().numpy()
    rank = 56  # of 9,396 tokens; and four standard deviations of how many of them reach its cost
    assert (counts >= 2 * k).all()
    assert (counts < 9396 / 2048 * (rank + 4 * np.sqrt(rank))).all()


def test_each_head_has_its_own_frame(device) -> None:
    n = 1500
    cache = Cache(device, keys_of(6, n, 2, 64), "f16")
    cache.frame = frame_of(2, 64)
    cache.sketch(0, n)
    cache.check(queries_of(6, 4, 64), ops.Range(4, 1400, n), ops.Wanted(60, 60, SEED))


def test_a_sample_that_promises_too_much_is_corrected(device) -> None:
    """Keys like the query lie only where the sample looks."""
    n, k = 9000, 300
    q, keys = queries_of(4, 2, 64), keys_of(4, n, 1, 64)
    keys[sampled(0, n), 0] += q[0, 0]
    cache = Cache(device, keys, "f16")
    cache.sketch(0, n)
    scratch = SketchScratch(2, 1, n, 2 * k, cache.layout, device=device)
    cache.check(q, ops.Range(0, n, n), ops.Wanted(k, 2 * k, SEED), scratch)
    assert (scratch.search.candidates.counts.cpu().numpy() < 2 * k).tolist() == [True, False]


def test_nearly_all_candidates_are_chosen_among_all(device) -> None:
    """The key that is least like the query is none that a sample has."""
    n = 4500
    q, keys = queries_of(4, 1, 64), keys_of(4, n, 1, 64)
    keys[np.setdiff1d(np.arange(n), sampled(0, n))[7], 0] -= 3 * q[0, 0]
    cache = Cache(device, keys, "f16")
    cache.sketch(0, n)
    scratch = SketchScratch(1, 1, n, n, cache.layout, device=device)
    cache.check(q, ops.Range(0, n, n), ops.Wanted(10, n, SEED), scratch)
    assert scratch.search.candidates.counts.tolist() == [n]


def test_more_candidates_than_room_are_looked_at_again(device) -> None:
    """All estimates are equal, so that all tokens reach any limit."""
    n = 10_000
    keys = np.broadcast_to(keys_of(5, 1, 1, 64), (n, 1, 64))
    cache = Cache(device, keys, "f16")
    cache.sketch(0, n)
    scratch = SketchScratch(1, 1, n, 20, cache.layout, device=device)
    got = cache.check(
        queries_of(5, 1, 64), ops.Range(1, n - 1, n), ops.Wanted(9, 20, SEED), scratch
    )
    candidates = scratch.search.candidates
    assert candidates.counts.item() == n - 2 > candidates.room
    positions = np.arange(1, n - 1)
    hashes = position_hash_reference(positions, SEED)
    assert set(got[0][1:-1]) == set(positions[np.argsort(hashes)[:9]])


def test_tokens_are_looked_at_again_as_they_were_scanned(device) -> None:
    """What was found has too little room in both KV heads; sums leave int8 on the way."""
    n = 1500
    q, keys = queries_of(12, 4, 64), keys_of(12, n, 2, 64)
    along = np.random.default_rng(3).uniform(-1, 2, (n, 1, 1))
    cache = Cache(device, along * q[0, ::2] + 0.2 * keys, "f16")
    cache.sketch(0, n)
    scratch = SketchScratch(4, 2, n, 300, cache.layout, device=device)
    candidates = scratch.search.candidates._replace(room=200)
    scratch.search = scratch.search._replace(candidates=candidates)
    cache.check(q, ops.Range(3, n - 10, n), ops.Wanted(150, 300, SEED), scratch)
    assert (candidates.counts.cpu().numpy() == n - 13).all()


@pytest.mark.parametrize("mean", [0.0, 40.0])
def test_the_last_are_found_among_few(device, mean: float) -> None:
    """More candidates than are counted at a time: of each head, those near its last one are apart.

    Products around 0 differ in sign, those far from it in few bits.
    """
    n = 4000
    q, keys = queries_of(13, 4, 64), keys_of(13, n, 1, 64)
    keys += mean * q[0, 0] / (q[0, 0] @ q[0, 0])
    cache = Cache(device, keys, "f16")
    cache.sketch(0, n)
    for k in (7, 620, 1100):
        cache.check(q, ops.Range(0, n, n), ops.Wanted(k, 2 * k, SEED))


def test_a_query_of_zeros_leaves_all_to_the_hash(device) -> None:
    n = 700
    cache = Cache(device, keys_of(6, n, 1, 64), "q8_0")
    cache.sketch(0, n)
    q = np.zeros((1, 3, 64), np.float32)
    cache.check(q, ops.Range(2, n - 9, n), ops.Wanted(9, 20, SEED))


def test_hashes_that_differ_in_their_last_byte_alone_are_told_apart(device) -> None:
    """All costs are 0; the last that is taken and the first that is not share 24 bits of the hash.
    The estimates decide between them, or the products."""
    first, last, k, seed = 2, 600, 20, 827_392
    ranked = np.sort(position_hash_reference(np.arange(first, last), seed))
    assert 0 < ranked[k] - ranked[k - 1] < 256 and ranked[k] >> 8 == ranked[k - 1] >> 8
    cache = Cache(device, keys_of(6, last, 1, 64), "q8_0")
    cache.sketch(0, last)
    q = np.zeros((1, 1, 64), np.float32)
    for few in (k, last):
        cache.check(q, ops.Range(first, last, last), ops.Wanted(k, few, seed))


@pytest.mark.parametrize(("head_dim", "side"), [(64, 1), (128, -1), (256, 1)])
def test_sums_beyond_int8_saturate(device, head_dim: int, side: int) -> None:
    """Keys near the lines of queries: their sums leave int8 on the way, on both sides."""
    n = 1500
    q, keys = queries_of(8, 3, head_dim), keys_of(8, n, 1, head_dim)
    rng = np.random.default_rng(3)
    along, noise = side * rng.uniform(-1, 2, (n, 1, 1)), rng.uniform(0.1, 2, (n, 1, 1))
    cache = Cache(device, along * q[0, np.arange(n) % 3, None] + noise * keys, "f16")
    cache.sketch(0, n)
    for k in (50, 1000):
        cache.check(q, ops.Range(3, n - 10, n), ops.Wanted(k, k, SEED))


def test_sums_of_one_head_alone_saturate(device) -> None:
    """The second of two that are added together: what leaves int8 is seen in either half."""
    n = 1100
    q, keys = queries_of(8, 2, 64), keys_of(8, n, 1, 64)
    q[0, 0] -= (q[0, 0] @ q[0, 1]) / (q[0, 1] @ q[0, 1]) * q[0, 1]
    along = np.random.default_rng(3).uniform(-1, 2, (n, 1, 1))
    cache = Cache(device, along * q[0, 1] + 0.2 * keys, "f16")
    cache.sketch(0, n)
    cache.check(q, ops.Range(3, n - 10, n), ops.Wanted(50, 50, SEED))


def test_the_least_sum_is_that_of_ops(device) -> None:
    """-127 where the sum is -128: taken as it is, other tokens would be among the candidates."""
    n = 1100
    q, keys = queries_of(8, 1, 64), keys_of(8, n, 1, 64)
    along = np.random.default_rng(3).uniform(-0.5, 0, (n, 1, 1))
    cache = Cache(device, along * q[0, :1] + 0.2 * keys, "f16")
    cache.sketch(0, n)
    cache.check(q, ops.Range(0, n, n), ops.Wanted(415, 415, SEED))


def test_a_shorter_context_forgets_a_longer_one(device) -> None:
    n = 3000
    cache = Cache(device, keys_of(10, n, 1, 64), "f16")
    cache.sketch(0, n)
    scratch = SketchScratch(4, 1, n, 400, cache.layout, device=device)
    for last in (3000, 130, 2100):
        wanted = ops.Wanted(last // 20, last // 10, SEED)
        cache.check(queries_of(last, 4, 64), ops.Range(0, last, last), wanted, scratch)


def test_no_more_candidates_than_the_scratch_holds(device) -> None:
    n = 500
    cache = Cache(device, keys_of(11, n, 1, 64), "f16")
    cache.sketch(0, n)
    q, among = queries_of(11, 2, 64), ops.Range(0, n, n)
    scratch = SketchScratch(2, 1, n, 32, cache.layout, device=device)
    got = cache.on_gpu(q, among, ops.Wanted(10, 300, SEED), scratch)
    np.testing.assert_array_equal(got[0], cache.from_formula(q, among, ops.Wanted(10, 32, SEED))[0])


def test_range_of_the_tables_is_that_of_ops() -> None:
    assert choice.RANGE == RANGE


def test_refuses_in_words(device) -> None:
    layout = TileLayout(64)
    rotation, scratch = (
        Rotation.random(64, 5, device),
        SketchScratch(2, 1, 2000, 9, layout, device=device),
    )
    kv = torch.zeros((2, layout.segment_bytes(1)), dtype=torch.uint8, device=device)
    bits = torch.zeros((2, 8 * SEGMENT), dtype=torch.uint8, device=device)
    factors = torch.zeros((2, 2 * SEGMENT), dtype=torch.uint8, device=device)
    frame = Frames(device).plain(1, 64)
    keys = ops.SketchedKeys(kv, bits, factors, rotation, frame)
    tokens = torch.zeros((1, 9), dtype=torch.int32, device=device)
    lists = ops.Lists(tokens, torch.zeros(1, dtype=torch.int32, device=device))
    q = torch.zeros((1, 2, 64), device=device)
    good = {
        "q": q, "keys": keys, "lists": lists,
        "among": ops.Range(0, 9, 9), "wanted": ops.Wanted(1, 2, 0),
    }  # fmt: skip
    for said, changed in (
        ("q is", {"q": good["q"][:, :1]}),
        ("segments are", {"keys": keys._replace(segments=kv[:, :-1])}),
        ("1 segments", {"keys": ops.SketchedKeys(kv[:1], bits[:1], factors[:1], rotation, frame)}),
        ("inverse is", {"keys": keys._replace(frame=frame._replace(inverse=q))}),
        ("bits are", {"keys": keys._replace(bits=bits[:, 4:])}),
        ("factors are", {"keys": keys._replace(factors=factors.float())}),
        ("a rotation of 128", {"keys": keys._replace(rotation=Rotation.random(128, 5, device))}),
        ("lists are", {"lists": lists._replace(tokens=tokens.long())}),
        ("seed is", {"wanted": ops.Wanted(1, 2, -1)}),
    ):
        with pytest.raises(CudaOpsError, match=said):
            best_sketched(**{**good, **changed}, scratch=scratch)
