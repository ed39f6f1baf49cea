"""Tokens that take slots: the bytes they leave, and what the queries of a chunk see."""

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.ops.attention.api import AttentionScratch, append_kv
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.errors import OpsError
from kvarn.ops.evict import (
    Signer,
    Staging,
    choose_oldest,
    set_positions,
    staged_attention,
)
from kvarn.ops.reference.attention import attention_reference, read_kv

from ...thread_counts import with_threads
from .slots import CASES, Slots, filled


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
    for a, b in zip(whole.memory, single.memory):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("case", CASES[:3])
def test_each_query_of_a_chunk_sees_what_is_left_for_it(case: tuple, softcap: float) -> None:
    """Dense attention in float64 over the tokens in the slots at each moment, slots at random;
    with a sink where scores are not capped."""
    head_dim, _, _, heads, kv_heads, n_slots, _ = case
    logits = None if softcap else np.linspace(-3.0, 3.0, heads, dtype=np.float32)
    softmax = Softmax(head_dim**-0.5, softcap, logits)
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
        new_q, segments = q[n_slots:], slots.segments
        staged_attention(staging, new_q, segments, n_slots, out, softmax=softmax, scratch=scratch)
        assert np.abs(out - _one_by_one(new_q, old, new, staging.targets, softmax)).max() < 5e-6


def _one_by_one(q, old, new, targets, softmax: Softmax):
    (k, v), want = (x.copy() for x in old), np.empty(q.shape)
    group = q.shape[1] // k.shape[1]
    for t in range(len(q)):
        for j in range(k.shape[1]):
            k[targets[j, t], j], v[targets[j, t], j] = (x[t, j] for x in new)
            heads, last = slice(j * group, (j + 1) * group), len(k) - 1
            query, keys, values = q[t : t + 1, heads], k[:, j : j + 1], v[:, j : j + 1]
            sinks = None if softmax.sinks is None else softmax.sinks[heads]
            of_heads = softmax._replace(sinks=sinks)
            row = attention_reference(query, keys, values, last, softmax=of_heads)
            want[t, heads] = row[0]
    return want


def test_threads_give_the_same_bytes() -> None:
    n_slots, n, runs = 4_200, 4_240, []
    for _ in with_threads(1, min(2, threads.max_threads())):
        slots, q, k, v = filled((64, "q8_0", "q4_0", 8, 2, n_slots, 16), n)
        slots.replace(q[n_slots:], k[n_slots:], v[n_slots:], n_slots)
        runs.append(np.concatenate([part.ravel() for part in slots.memory]))
    np.testing.assert_array_equal(*runs)


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
