"""Which token gives way, and what is written: NumPy of the paper's algorithm, token by token."""

from dataclasses import replace

import numpy as np
import pytest

from kvarn.ops.attention import TileLayout
from kvarn.ops.evict import (
    Signer,
    choose_oldest,
    write_staged,
)
from kvarn.ops.reference.evict import farthest_slot, ring_slot, signatures

from .slots import CASES, RECENT, SINKS, filled


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
        before, signatures_ = slots.items(1).copy(), [slots.bits_of(j) for j in range(kv_heads)]
        slots.replace(q[p : p + 1], k[p : p + 1], v[p : p + 1], p, by_key=True)
        for j in range(kv_heads):
            (slot,) = np.flatnonzero(slots.items(1)[j] != before[j])
            new = slots.bits_of(j)[slot : slot + 1]
            assert slot == farthest_slot(new, signatures_[j], before[j], p, SINKS, RECENT)


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
