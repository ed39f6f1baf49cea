"""Sketches and what is chosen by them, against `ops`, bit for bit, and the formula in NumPy."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from kvarn.cuda_ops.errors import CudaOpsError
from kvarn.cuda_ops.select.sketch import (
    KeyScratch,
    Rotation,
    SketchedKeys,
    SketchScratch,
    best_sketched,
    choice,
    mean_keys,
    sketch_keys,
)
from kvarn.ops import select as ops
from kvarn.ops.attention import TileLayout, append_kv
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.reference.attention import read_kv
from kvarn.ops.reference.select import best_reference, position_hash_reference
from kvarn.ops.select.queries import RANGE

SEED = 20_240_517


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
        shape = n_segments, self.heads, SEGMENT
        self.bits = np.full((*shape, self.rotation.bits // 8), 0xA5, np.uint8)
        self.factors = np.full(shape, -7, np.float16)

    @property
    def columns(self) -> list[np.ndarray]:
        """Addresses of the segments of the sketches."""
        both = self.bits, self.factors
        return [x.ctypes.data + x[0].nbytes * np.arange(len(x)) for x in both]

    def sketch(self, centre: np.ndarray, first: int, last: int) -> None:
        """The sketches that `ops` makes."""
        ops.sketch_keys(self.rotation, centre, self.places, self.layout, *self.columns, first, last)

    def from_ops(self, q, among: ops.Range, wanted: ops.Wanted) -> list[np.ndarray]:
        index = np.zeros((self.heads, self.n), np.uint32)
        counts = np.zeros(self.heads, np.int64)
        scratch = ops.SketchScratch(
            q.shape[1], self.heads, self.n, max(wanted.n_candidates, wanted.k), self.layout
        )
        keys = ops.SketchedKeys(self.places, *self.columns, self.rotation)
        ops.best_sketched(q, keys, among, wanted, ops.Lists(index, counts), scratch=scratch)
        return [index[j, :n] for j, n in enumerate(counts)]

    def on_gpu(self, q, among: ops.Range, wanted: ops.Wanted, scratch=None) -> list[np.ndarray]:
        def tensor(x, **more) -> torch.Tensor:
            return torch.tensor(x, device=self.device, **more)

        few = max(wanted.n_candidates, wanted.k)
        scratch = scratch or SketchScratch(
            q.shape[1], self.heads, self.n, few, self.layout, self.device
        )
        place = tensor([*among, wanted.k, wanted.n_candidates], dtype=torch.int32)
        index = torch.full((self.heads, self.n), -1, dtype=torch.int32, device=self.device)
        counts = torch.zeros(self.heads, dtype=torch.int32, device=self.device)
        rotation = Rotation.of(self.rotation, self.device)
        keys = SketchedKeys(self.kv, tensor(self.bits), tensor(self.factors), rotation)
        best_sketched(tensor(q), keys, place, index, counts, seed=SEED, scratch=scratch)
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
            near = [best_reference(_costs(x), first, few, wanted.seed, none) for x in estimates]
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
        y[:, : q.shape[1]] = q
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


def _costs(x: np.ndarray) -> np.ndarray:
    """Costs in the order of ops: 0 is better than -0."""
    bits = x.view(np.uint32)
    return np.where(bits >> 31, bits, bits ^ np.uint32(0x7FFFFFFF))


def _keys(seed: int, n: int, heads: int, head_dim: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, heads, head_dim)).astype(np.float32)


def _queries(seed: int, heads: int, head_dim: int) -> np.ndarray:
    return _keys(1000 + seed, 1, heads, head_dim)


def test_the_interpreter_fuses_as_a_gpu_does(fused) -> None:
    rng = np.random.default_rng(0)
    x, y, z = rng.standard_normal((3, 300)).astype(np.float32)
    z[::3] = -(x * y)[::3]  # what is left are the bits that a product would lose
    z[1::3] *= np.float32(2.0) ** rng.integers(-60, 60, 100)
    for a, b, c, got in zip(x, y, z, fused(x, y, z)):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        near = np.float32(float(exact))
        least = min(
            (near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))),
            key=lambda v: abs(Fraction(float(v)) - exact),
        )
        assert got == least


@pytest.mark.parametrize(
    ("head_dim", "kind", "heads", "start", "n_tokens"),
    [
        (64, "q8_0", 2, 1015, 17),
        (64, "f16", 1, 0, 1),
        (80, "q4_0", 2, 1023, 2),
        (128, "f16", 1, 15, 16),
        (256, "q8_0", 1, 1024, 1),
        (24, "q4_0", 3, 3, 15),
    ],
)
def test_sketches_are_those_of_ops(device, head_dim, kind, heads, start, n_tokens) -> None:
    cache = Cache(device, _keys(head_dim, start + n_tokens, heads, head_dim), kind)
    centre = _keys(7, heads, 1, head_dim)[:, 0]
    bits, factors = (torch.tensor(x, device=device) for x in (cache.bits, cache.factors))
    cache.sketch(centre, start, start + n_tokens)
    scratch = KeyScratch(heads, cache.layout, n_tokens, device)
    sketch_keys(
        Rotation.of(cache.rotation, device), torch.tensor(centre, device=device), cache.kv, bits,
        factors, torch.tensor([start], dtype=torch.int32, device=device), n_tokens, scratch=scratch,
    )  # fmt: skip
    np.testing.assert_array_equal(bits.cpu().numpy(), cache.bits)
    np.testing.assert_array_equal(
        factors.cpu().numpy().view(np.uint16), cache.factors.view(np.uint16)
    )


def test_rotated_keys_have_the_bits_of_fused_sums(device, fused) -> None:
    """Added in the order of inputs. Signs and f16 show next to nothing of another rounding."""
    cache = Cache(device, _keys(15, 2, 1, 64), "f16")
    bits, factors = (torch.tensor(x, device=device) for x in (cache.bits, cache.factors))
    scratch = KeyScratch(1, cache.layout, 2, device)
    sketch_keys(
        Rotation.of(cache.rotation, device), torch.zeros((1, 64), device=device), cache.kv, bits,
        factors, torch.zeros(1, dtype=torch.int32, device=device), 2, scratch=scratch,
    )  # fmt: skip
    x, y = scratch.work.cpu().numpy().ravel()[: 2 * 128].reshape(2, 2, 64).swapaxes(0, 1)
    weights = cache.rotation.weights.astype(np.float32)
    want = np.broadcast_to(weights[64 * 64 :], (2, 64))
    for e in range(64):
        row = np.broadcast_to(weights[64 * e : 64 * e + 64], want.shape)
        want = fused(row, np.broadcast_to(x[:, e : e + 1], want.shape), want)
    np.testing.assert_array_equal(y, want)


def test_a_zero_key_has_no_bits_and_the_factor_0(device) -> None:
    """And what lies outside the segments is not written."""
    cache = Cache(device, np.zeros((1024, 1, 64), np.float32), "f16")
    bits, factors = (torch.tensor(x, device=device) for x in (cache.bits, cache.factors))
    sketch_keys(
        Rotation.random(64, 5, device), torch.zeros((1, 64), device=device), cache.kv, bits,
        factors, torch.tensor([1020], dtype=torch.int32, device=device), 20,
        scratch=KeyScratch(1, cache.layout, 20, device),
    )  # fmt: skip
    assert not bits[0, 0, 1020:].any() and not factors[0, 0, 1020:].any()
    assert (bits[0, 0, :1020] == 0xA5).all() and (factors[0, 0, :1020] == -7).all()


@pytest.mark.parametrize(
    ("head_dim", "kind", "first", "last"),
    [(64, "q8_0", 1000, 1030), (80, "q4_0", 4, 21), (256, "f16", 1023, 1024), (64, "f16", 5, 37)],
)
def test_means_of_keys_are_those_of_ops(device, head_dim, kind, first, last) -> None:
    cache = Cache(device, _keys(head_dim, last, 2, head_dim), kind)
    got = mean_keys(cache.kv, cache.layout, 2, first, last).cpu().numpy()
    want = ops.mean_keys(cache.places, cache.layout, 2, first, last)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


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
    cache = Cache(device, _keys(n, n, kv_heads, head_dim), kind)
    cache.sketch(np.zeros((kv_heads, head_dim), np.float32), 0, n)
    cache.check(_queries(n, heads, head_dim), ops.Range(*among), ops.Wanted(k, few, SEED))


@pytest.mark.parametrize(
    ("head_dim", "kind", "kv_heads", "group", "zeros"),
    [(64, "q8_0", 2, 8, 1), (64, "q8_0", 1, 4, 2), (64, "q8_0", 1, 4, 0), (80, "q4_0", 1, 3, 3)],
)
def test_lists_are_those_of_ops(device, head_dim, kind, kv_heads, group, zeros) -> None:
    """Without zeros, with every second key of zeros, every third, or all."""
    n = 1100
    keys, q = _keys(6, n, kv_heads, head_dim), _queries(6, kv_heads * group, head_dim)
    keys[:: zeros or n] *= 0.0
    cache = Cache(device, keys, kind)
    cache.sketch(np.zeros((kv_heads, head_dim), np.float32), 0, n)
    for k, few in ((7, 20), (600, 650)):
        cache.check(q, ops.Range(2, n - 9, n), ops.Wanted(k, few, SEED), from_ops=True)


@pytest.mark.parametrize(("head_dim", "kind"), [(64, "f16"), (96, "q8_0")])
def test_products_have_the_bits_of_the_order_of_ops(device, fused, head_dim, kind) -> None:
    """16 sums, then those 8 apart, 4 apart, and neighbours."""
    n, q, keys = 40, -np.abs(_queries(14, 1, head_dim)), _keys(14, 40, 1, head_dim)
    keys[7] = 0  # its products with numbers below 0 are -0, and so is their sum
    cache = Cache(device, keys, kind)
    cache.sketch(np.zeros((1, head_dim), np.float32), 0, n)
    scratch = SketchScratch(1, 1, n, n, cache.layout, device)
    cache.on_gpu(q, ops.Range(0, n, n), ops.Wanted(9, n, SEED), scratch)
    entries = scratch.scored[0, : scratch.n_listed.item()].cpu().numpy()
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
    np.testing.assert_array_equal(costs, _costs(sums[:, 0] + sums[:, 1]))


def test_a_sample_gives_the_first_limits(device) -> None:
    """And few more tokens than wanted become candidates."""
    n, k = 9500, 60
    cache = Cache(device, _keys(3, n, 1, 64), "q8_0")
    cache.sketch(np.full((1, 64), 0.25, np.float32), 0, n)
    scratch = SketchScratch(4, 1, n, 2 * k, cache.layout, device)
    cache.check(_queries(3, 4, 64), ops.Range(4, 9400, n), ops.Wanted(k, 2 * k, SEED), scratch)
    found = scratch.n_found.cpu().numpy()
    assert (found >= 2 * k).all() and (found < 5 * k).all()


def test_a_sample_that_promises_too_much_is_corrected(device) -> None:
    """Keys like the query lie only where the sample looks."""
    n, k = 9000, 300
    q, keys = _queries(4, 2, 64), _keys(4, n, 1, 64)
    step = (n - 64) // 63
    for i in range(64):
        keys[i * step : i * step + 64, 0] += q[0, 0]
    cache = Cache(device, keys, "f16")
    cache.sketch(np.zeros((1, 64), np.float32), 0, n)
    scratch = SketchScratch(2, 1, n, 2 * k, cache.layout, device)
    cache.check(q, ops.Range(0, n, n), ops.Wanted(k, 2 * k, SEED), scratch)
    assert (scratch.n_found.cpu().numpy() < 2 * k).tolist() == [True, False]


def test_more_candidates_than_room_are_looked_at_again(device) -> None:
    """All estimates are equal, so that all tokens reach any limit."""
    n = 10_000
    keys = np.broadcast_to(_keys(5, 1, 1, 64), (n, 1, 64))
    cache = Cache(device, keys, "f16")
    cache.sketch(np.zeros((1, 64), np.float32), 0, n)
    scratch = SketchScratch(1, 1, n, 20, cache.layout, device)
    got = cache.check(_queries(5, 1, 64), ops.Range(1, n - 1, n), ops.Wanted(9, 20, SEED), scratch)
    assert scratch.n_found.item() == n - 2 > scratch.found_room
    positions = np.arange(1, n - 1)
    hashes = position_hash_reference(positions, SEED)
    assert set(got[0][1:-1]) == set(positions[np.argsort(hashes)[:9]])


def test_tokens_are_looked_at_again_as_they_were_scanned(device) -> None:
    """What was found has too little room in both KV heads; sums leave int8 on the way."""
    n = 1500
    q, keys = _queries(12, 4, 64), _keys(12, n, 2, 64)
    along = np.random.default_rng(3).uniform(-1, 2, (n, 1, 1))
    cache = Cache(device, along * q[0, ::2] + 0.2 * keys, "f16")
    cache.sketch(np.zeros((2, 64), np.float32), 0, n)
    scratch = SketchScratch(4, 2, n, 300, cache.layout, device)
    scratch.found_room = 200
    cache.check(q, ops.Range(3, n - 10, n), ops.Wanted(150, 300, SEED), scratch)
    assert (scratch.n_found.cpu().numpy() == n - 13).all()


def test_a_query_of_zeros_leaves_all_to_the_hash(device) -> None:
    n = 700
    cache = Cache(device, _keys(6, n, 1, 64), "q8_0")
    cache.sketch(np.zeros((1, 64), np.float32), 0, n)
    q = np.zeros((1, 3, 64), np.float32)
    cache.check(q, ops.Range(2, n - 9, n), ops.Wanted(9, 20, SEED))


@pytest.mark.parametrize(("head_dim", "side"), [(64, 1), (128, -1), (256, 1)])
def test_sums_beyond_int8_saturate(device, head_dim: int, side: int) -> None:
    """Keys near the lines of queries: their sums leave int8 on the way, on both sides."""
    n = 1500
    q, keys = _queries(8, 3, head_dim), _keys(8, n, 1, head_dim)
    rng = np.random.default_rng(3)
    along, noise = side * rng.uniform(-1, 2, (n, 1, 1)), rng.uniform(0.1, 2, (n, 1, 1))
    cache = Cache(device, along * q[0, np.arange(n) % 3, None] + noise * keys, "f16")
    cache.sketch(np.zeros((1, head_dim), np.float32), 0, n)
    for k in (50, 1000):
        cache.check(q, ops.Range(3, n - 10, n), ops.Wanted(k, k, SEED))


def test_a_shorter_context_forgets_a_longer_one(device) -> None:
    n = 3000
    cache = Cache(device, _keys(10, n, 1, 64), "f16")
    cache.sketch(np.zeros((1, 64), np.float32), 0, n)
    scratch = SketchScratch(4, 1, n, 400, cache.layout, device)
    for last in (3000, 130, 2100):
        wanted = ops.Wanted(last // 20, last // 10, SEED)
        cache.check(_queries(last, 4, 64), ops.Range(0, last, last), wanted, scratch)


def test_no_more_candidates_than_the_scratch_holds(device) -> None:
    n = 500
    cache = Cache(device, _keys(11, n, 1, 64), "f16")
    cache.sketch(np.zeros((1, 64), np.float32), 0, n)
    q, among = _queries(11, 2, 64), ops.Range(0, n, n)
    scratch = SketchScratch(2, 1, n, 32, cache.layout, device)
    got = cache.on_gpu(q, among, ops.Wanted(10, 300, SEED), scratch)
    np.testing.assert_array_equal(got[0], cache.from_formula(q, among, ops.Wanted(10, 32, SEED))[0])


def test_range_of_the_tables_is_that_of_ops() -> None:
    assert choice.RANGE == RANGE


def test_refuses_in_words(device) -> None:
    layout = TileLayout(64)
    rotation, scratch = Rotation.random(64, 5, device), SketchScratch(2, 1, 2000, 9, layout, device)
    kv = torch.zeros((2, layout.segment_bytes(1)), dtype=torch.uint8, device=device)
    bits = torch.zeros((2, 1, SEGMENT, 8), dtype=torch.uint8, device=device)
    factors = torch.zeros((2, 1, SEGMENT), dtype=torch.float16, device=device)
    keys = SketchedKeys(kv, bits, factors, rotation)
    among = torch.zeros(5, dtype=torch.int32, device=device)
    good = {
        "q": torch.zeros((1, 2, 64), device=device), "keys": keys, "among": among,
        "index": torch.zeros((1, 9), dtype=torch.int32, device=device),
        "counts": torch.zeros(1, dtype=torch.int32, device=device), "seed": 0,
    }  # fmt: skip
    for said, changed in (
        ("q is", {"q": good["q"][:, :1]}),
        ("segments are", {"keys": keys._replace(kv=kv[:, :-1])}),
        ("1 segments", {"keys": SketchedKeys(kv[:1], bits[:1], factors[:1], rotation)}),
        ("bits are", {"keys": keys._replace(bits=bits[..., :4])}),
        ("factors are", {"keys": keys._replace(factors=factors.float())}),
        ("a rotation of 128", {"keys": keys._replace(rotation=Rotation.random(128, 5, device))}),
        ("among is", {"among": among[:4]}),
        ("lists are", {"index": good["index"].long()}),
        ("seed is", {"seed": -1}),
    ):
        with pytest.raises(CudaOpsError, match=said):
            best_sketched(**{**good, **changed}, scratch=scratch)
    start, centre = among[:1].clone(), torch.zeros((1, 64), device=device)
    key_scratch = KeyScratch(1, layout, 4, device)
    for said, given in (
        ("5 keys", (centre, kv, bits, factors, start, 5)),
        ("centre is", (centre[:, :9], kv, bits, factors, start, 1)),
        ("start is", (centre, kv, bits, factors, start.long(), 1)),
    ):
        with pytest.raises(CudaOpsError, match=said):
            sketch_keys(rotation, *given, scratch=key_scratch)
    for first, last in ((7, 7), (0, 2049)):
        with pytest.raises(CudaOpsError, match="mean of keys: tokens"):
            mean_keys(kv, layout, 1, first, last)
