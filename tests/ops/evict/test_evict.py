"""Which token gives way, and what is written: NumPy of the paper's algorithm, token by token."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from kvarn.jit import threads
from kvarn.ops.attention import SEGMENT, AttentionScratch, TileLayout, append_kv, n_segments
from kvarn.ops.errors import OpsError
from kvarn.ops.evict import (
    Protected,
    Signatures,
    Signer,
    Staging,
    choose_farthest,
    choose_oldest,
    set_positions,
    sign_tokens,
    staged_attention,
    write_staged,
)
from kvarn.ops.reference.attention import attention_reference, read_kv
from kvarn.ops.reference.evict import farthest_slot, ring_slot, signatures

SINKS, RECENT = 4, 10


def column(n_segs: int, n_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    raw = np.zeros(n_segs * n_bytes + 64, np.uint8)
    memory = raw[-raw.ctypes.data % 64 :][: n_segs * n_bytes].reshape(n_segs, n_bytes)
    return memory, memory.ctypes.data + n_bytes * np.arange(n_segs, dtype=np.int64)


@dataclass
class Slots:
    """Slots of one layer in plain memory, with the arrays the kernels write."""

    layout: TileLayout
    heads: int
    kv_heads: int
    n_slots: int
    bits: int
    centre: NDArray[np.float32] | None = None
    memory: list[NDArray[np.uint8]] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = n_segments(self.n_slots)
        sizes = [self.layout.segment_bytes(self.kv_heads), *[4 * SEGMENT * self.kv_heads] * 3]
        self.memory, (self.segments, self.positions, low, high) = zip(
            *(column(n, size) for size in sizes)
        )
        self.signer = Signer(self.layout, self.bits, (7,), self.centre)
        self.signatures = Signatures(low, high if self.signer.words == 2 else low)
        group = self.heads // self.kv_heads
        self.staging = Staging(self.layout, group, self.kv_heads, self.n_slots, 64)

    def fill(self, k: NDArray[np.float32], v: NDArray[np.float32]) -> None:
        append_kv(k, v, self.segments, self.layout, 0)
        set_positions(self.positions, self.kv_heads, 0, 0, len(k))
        sign_tokens(self.staging, self.segments, self.signer, self.signatures, 0, len(k))

    def replace(self, q, k, v, position: int, by_key: bool = False) -> None:
        self.staging.put(k, v)
        choose_farthest(
            self.staging,
            q,
            self.signer,
            self.signatures,
            self.positions,
            n_slots=self.n_slots,
            position=position,
            protected=Protected(SINKS, RECENT),
            by_key=by_key,
        )
        write_staged(self.staging, self.segments, self.positions, position)

    def items(self, which: int) -> NDArray[np.uint32]:
        """(KV heads, slots) of a column: 1 positions, 2 and 3 words of signatures."""
        rows = self.memory[which].view(np.uint32).reshape(-1, self.kv_heads, SEGMENT)
        return rows.swapaxes(0, 1).reshape(self.kv_heads, -1)[:, : self.n_slots]

    def bits_of(self, head: int) -> NDArray[np.bool_]:
        words = np.stack([self.items(2 + w)[head] for w in range(self.signer.words)], -1)
        raw = np.unpackbits(words.astype("<u4").view(np.uint8), axis=-1, bitorder="little")
        assert not raw[:, self.bits :].any()
        return raw[:, : self.bits].astype(bool)

    def stored(self):
        return read_kv(self.segments, self.layout, self.kv_heads, 0, self.n_slots)


def tokens(n: int, heads: int, kv_heads: int, head_dim: int):
    rng = np.random.default_rng(n + heads)
    q = rng.standard_normal((n, heads, head_dim)).astype(np.float32)
    k, v = rng.standard_normal((2, n, kv_heads, head_dim)).astype(np.float32)
    return q, k, v


def filled(case: tuple, n_tokens: int):
    head_dim, k_type, v_type, heads, kv_heads, n_slots, bits = case
    slots = Slots(TileLayout(head_dim, k_type, v_type), heads, kv_heads, n_slots, bits)
    q, k, v = tokens(n_tokens, heads, kv_heads, head_dim)
    slots.fill(k[:n_slots], v[:n_slots])
    return slots, q, k, v


# head_dim, K type, V type, query heads, KV heads, slots, bits
CASES = [
    (64, "f16", "f16", 8, 2, 100, 16),
    (80, "q8_0", "f16", 3, 3, 15, 4),
    (128, "q4_0", "q8_0", 20, 1, 64, 33),
    (96, "q4_0", "q4_0", 4, 1, 1030, 64),
    (33, "f16", "q4_0", 36, 1, 47, 24),
]


@pytest.mark.parametrize("case", CASES)
def test_survivors_are_those_of_the_paper(case: tuple) -> None:
    """Every choice, and every signature, of 60 tokens beyond the slots."""
    heads, kv_heads, n_slots = case[3:6]
    n = n_slots + 60
    slots, q, k, v = filled(case, n)
    group = heads // kv_heads
    for p in range(n_slots, n):
        want = slots.items(1).copy()
        for j in range(kv_heads):
            codes = signatures(q[p, j * group : (j + 1) * group], slots.signer.planes.T)
            victim = farthest_slot(codes, slots.bits_of(j), want[j], p, SINKS, RECENT)
            want[j, victim] = p
        slots.replace(q[p : p + 1], k[p : p + 1], v[p : p + 1], p)
        np.testing.assert_array_equal(slots.items(1), want)
    stored, _ = slots.stored()
    for j in range(kv_heads):
        np.testing.assert_array_equal(
            slots.bits_of(j), signatures(stored[:, j], slots.signer.planes.T)
        )


@pytest.mark.parametrize("case", CASES)
def test_survivors_are_those_of_the_authors_code(case: tuple) -> None:
    """The key that differs most from the new one, as it is stored, goes."""
    kv_heads, n_slots = case[4:6]
    n = n_slots + 40
    slots, q, k, v = filled(case, n)
    for p in range(n_slots, n):
        before, own = slots.items(1).copy(), [slots.bits_of(j) for j in range(kv_heads)]
        slots.replace(q[p : p + 1], k[p : p + 1], v[p : p + 1], p, by_key=True)
        for j in range(kv_heads):
            (slot,) = np.flatnonzero(slots.items(1)[j] != before[j])
            new = slots.bits_of(j)[slot : slot + 1]
            assert slot == farthest_slot(new, own[j], before[j], p, SINKS, RECENT)


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[3]])
def test_keys_stored_without_a_centre_are_signed_whole(case: tuple) -> None:
    head_dim, _, _, heads, kv_heads, n_slots, _ = case
    plain, q, k, v = filled(case, n_slots + 30)
    centre = 3 * np.random.default_rng(5).standard_normal((kv_heads, head_dim)).astype(np.float32)
    centred = replace(plain, centre=centre, memory=[])
    centred.fill(k[:n_slots] - centre, v[:n_slots])
    for p in range(n_slots, n_slots + 30):
        row = slice(p, p + 1)
        centred.replace(q[row], k[row] - centre, v[row], p)
    stored, _ = centred.stored()
    planes, close = centred.signer.planes.astype(np.float64), 1e-4 * head_dim
    for j in range(kv_heads):
        products = (stored[:, j] + centre[j].astype(np.float64)) @ planes
        sure = np.abs(products) > close
        assert sure.mean() > 0.99
        np.testing.assert_array_equal(centred.bits_of(j)[sure], (products > 0)[sure])
    queries = signatures(q[-1, : heads // kv_heads], planes.T)
    assert queries.any() and (centred.items(1) != plain.items(1)).any()


@pytest.mark.parametrize("case", CASES)
def test_rows_are_those_of_an_ordinary_cache(case: tuple) -> None:
    """The K and V in a slot are the bytes that append_kv writes for that position."""
    kv_heads, n_slots = case[4:6]
    n = n_slots + 40
    slots, q, k, v = filled(case, n)
    for p in range(n_slots, n):
        slots.replace(q[p : p + 1], k[p : p + 1], v[p : p + 1], p)
    whole = Slots(slots.layout, case[3], kv_heads, n, case[6])
    append_kv(k, v, whole.segments, whole.layout, 0)
    for got, want in zip(slots.stored(), whole.stored()):
        for j in range(kv_heads):
            np.testing.assert_array_equal(got[:, j], want[slots.items(1)[j], j])


@pytest.mark.parametrize("case", CASES[:3])
def test_a_chunk_leaves_the_bytes_of_its_tokens_one_by_one(case: tuple) -> None:
    """More tokens than slots in one case: some come and go within the chunk."""
    n_slots = case[5]
    n = n_slots + 64
    whole, q, k, v = filled(case, n)
    whole.replace(q[n_slots:], k[n_slots:], v[n_slots:], n_slots)
    single, *_ = filled(case, n)
    for p in range(n_slots, n):
        single.replace(q[p : p + 1], k[p : p + 1], v[p : p + 1], p)
    for one, other in zip(whole.memory, single.memory):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("case", CASES[:3])
def test_each_query_of_a_chunk_sees_what_is_left_for_it(case: tuple, softcap: float) -> None:
    """Dense attention in float64 over the tokens in the slots at each moment, slots at random."""
    head_dim, _, _, heads, kv_heads, n_slots, _ = case
    for size in (1, 17, 64):
        slots, q, k, v = filled(case, n_slots + size)
        staging = slots.staging
        old = slots.stored()
        staging.put(k[n_slots:], v[n_slots:])
        new = read_kv(staging.segments, slots.layout, kv_heads, 0, size)
        rng = np.random.default_rng(size)
        staging.targets[:, :size] = rng.integers(0, min(n_slots, 40), (kv_heads, size))
        scratch = AttentionScratch(heads, kv_heads, slots.layout, 64, n_slots)
        out = np.full((size, heads, head_dim), np.nan, np.float32)
        new_q, segments, scale = q[n_slots:], slots.segments, head_dim**-0.5
        staged_attention(
            staging, new_q, segments, n_slots, out, scale=scale, softcap=softcap, scratch=scratch
        )
        assert np.abs(out - _one_by_one(new_q, old, new, staging.targets, softcap)).max() < 5e-6


def _one_by_one(q, old, new, targets, softcap: float):
    head_dim = q.shape[2]
    (k, v), want = (x.copy() for x in old), np.empty(q.shape)
    group = q.shape[1] // k.shape[1]
    for t in range(len(q)):
        for j in range(k.shape[1]):
            k[targets[j, t], j], v[targets[j, t], j] = (x[t, j] for x in new)
            heads, last = slice(j * group, (j + 1) * group), len(k) - 1
            one, keys, values = q[t : t + 1, heads], k[:, j : j + 1], v[:, j : j + 1]
            scale = head_dim**-0.5
            row = attention_reference(one, keys, values, last, scale=scale, softcap=softcap)
            want[t, heads] = row[0]
    return want


def test_the_oldest_give_way_in_a_ring() -> None:
    slots, _, k, v = filled((64, "f16", "f16", 4, 2, 30, 16), 200)
    p = 30
    for size in (1, 20, 64, 1, 40):
        slots.staging.put(k[p : p + size], v[p : p + size])
        choose_oldest(slots.staging, 30, p, SINKS)
        write_staged(slots.staging, slots.segments, slots.positions, p)
        p += size
        for kept in slots.items(1).tolist():
            assert set(kept) == {*range(SINKS), *range(p - 26, p)}
            assert all(ring_slot(position, 30, SINKS) == i for i, position in enumerate(kept))


def test_sinks_and_the_last_tokens_stay() -> None:
    n_slots, n = 15, 400
    slots, q, k, v = filled((64, "f16", "f16", 4, 2, n_slots, 16), n)
    for p in range(n_slots, n):
        slots.replace(q[p : p + 1], k[p : p + 1], v[p : p + 1], p)
        for kept in slots.items(1).tolist():
            assert {*range(SINKS), *range(p - RECENT, p + 1)} == set(kept)


def test_a_tie_falls_on_no_particular_age() -> None:
    """Equal keys are all equally far; evicting by age or slot would go through them in order."""
    n_slots = 200
    slots, q, _, v = filled((64, "f16", "f16", 4, 1, n_slots, 16), n_slots + 50)
    k = np.ones((n_slots + 50, 1, 64), np.float32)
    slots.fill(k[:n_slots], v[:n_slots])
    went = []
    for p in range(n_slots, n_slots + 50):
        before = slots.items(1)[0].copy()
        slots.replace(q[p : p + 1], k[p : p + 1], v[p : p + 1], p)
        went.append(int(before[slots.items(1)[0] != before][0]))
    assert len(set(went)) == 50
    assert abs(np.corrcoef(went, range(50))[0, 1]) < 0.4


def test_threads_give_the_same_bytes() -> None:
    n_slots, n, most = 4_200, 4_240, min(2, threads.max_threads())
    runs, before = [], threads.n_threads()
    for count in (1, most):
        threads.set_threads(count)
        slots, q, k, v = filled((64, "q8_0", "q4_0", 8, 2, n_slots, 16), n)
        slots.replace(q[n_slots:], k[n_slots:], v[n_slots:], n_slots)
        runs.append(np.concatenate([part.ravel() for part in slots.memory]))
    threads.set_threads(before)
    np.testing.assert_array_equal(*runs)


def test_hamming_distance_estimates_the_angle() -> None:
    """E[distance] = bits * angle / pi (Goemans and Williamson), over 200 draws of 64 planes."""
    layout = TileLayout(64)
    x = np.array([[1.0] + [0.0] * 63, [np.cos(0.7), np.sin(0.7)] + [0.0] * 62])
    far = [
        np.not_equal(*signatures(x, Signer(layout, 64, (seed,)).planes.T)).sum()
        for seed in range(200)
    ]
    error = np.sqrt(64 * 0.7 / np.pi * (1 - 0.7 / np.pi) / len(far))
    assert abs(np.mean(far) - 64 * 0.7 / np.pi) < 4 * error


def test_refuses_in_words() -> None:
    slots, q, k, v = filled((64, "f16", "f16", 4, 2, 20, 16), 200)
    with pytest.raises(OpsError, match="slots, expected tokens"):
        choose_oldest(slots.staging, 20, 20, 0)
    for n in (0, 65):
        with pytest.raises(OpsError, match=f"{n} tokens, expected 1 to 64"):
            slots.staging.put(k[:n], v[:n])
    with pytest.raises(OpsError, match="q is float32"):
        slots.replace(q[:2], k[:1], v[:1], 20)
    with pytest.raises(OpsError, match="20 sinks in 20 slots"):
        choose_oldest(slots.staging, 20, 20, 20)
    with pytest.raises(OpsError, match="21 slots, expected"):
        choose_oldest(slots.staging, 21, 21, 0)
    with pytest.raises(OpsError, match="0 tokens, expected"):
        Staging(slots.layout, 1, 1, 20, 0)
    with pytest.raises(OpsError, match="all filled"):
        slots.replace(q[:1], k[:1], v[:1], 19)
    slots.n_slots = 14
    with pytest.raises(OpsError, match=r"4 \+ 10 that stay"):
        slots.replace(q[:1], k[:1], v[:1], 20)
    slots.n_slots = 1025
    with pytest.raises(OpsError, match="reserve more"):
        slots.replace(q[:1], k[:1], v[:1], 2000)
    with pytest.raises(OpsError, match="reserve more"):
        set_positions(slots.positions, 2, 1000, 0, 25)
    for bits in (3, 65):
        with pytest.raises(OpsError, match="4 to 64"):
            Signer(slots.layout, bits, (0,))
