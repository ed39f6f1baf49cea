"""How much attention keys get, in float64 NumPy; and moving what stays."""

import numpy as np
import pytest
from numpy.typing import NDArray

from kvarn.jit import threads
from kvarn.ops.attention import SEGMENT, n_segments
from kvarn.ops.attention.api import AttentionScratch, append_kv, attention_rows
from kvarn.ops.attention.layout import layout_of
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.errors import OpsError
from kvarn.ops.evict import add_attention, key_norms, move_slots, set_positions
from kvarn.ops.reference.attention import read_kv

from ...thread_counts import with_threads
from .slots import column

SCALE = 0.3


class Cache:
    """Random queries, keys and values of one layer, stored."""

    def __init__(
        self, n: int, kv_heads: int = 2, group: int = 3, head_dim: int = 64, kind: str = "f16"
    ) -> None:
        rng = np.random.default_rng(n)
        self.layout, self.kv_heads = layout_of(head_dim, kind, kind), kv_heads
        self.q = rng.standard_normal((n, kv_heads * group, head_dim), np.float32)
        self.q *= np.float32(min(1, 256 / head_dim))  # scores of like size, which round alike
        k, v = rng.standard_normal((2, n, kv_heads, head_dim), np.float32)
        v = k if head_dim > 512 else v
        size = self.layout.segment_bytes(kv_heads)
        self.memory, self.segments = column(n_segments(n), size)
        self.position_memory, self.positions = column(n_segments(n), 4 * SEGMENT * kv_heads)
        append_kv(k, v, self.segments, self.layout, 0)
        set_positions(self.positions, kv_heads, 0, 0, n)
        self.k, self.v = read_kv(self.segments, self.layout, kv_heads, 0, n)
        self.scratch = AttentionScratch(kv_heads * group, kv_heads, self.layout, n_ctx=n)

    def softmax(self, start: int, softcap: float) -> tuple[NDArray, NDArray]:
        """Causal rows (T, H, n) and log-sum-exp (T, H) of the queries from `start` on."""
        n, group = len(self.q), self.q.shape[1] // self.kv_heads
        keys = np.repeat(self.k, group, 1).astype(np.float64)
        s = SCALE * np.einsum("the,nhe->thn", self.q[start:].astype(np.float64), keys)
        if softcap:
            s = softcap * np.tanh(s / softcap)
        s[np.arange(n)[None, None] > np.arange(start, n)[:, None, None] + 0 * s] = -np.inf
        log_sums = np.log(np.exp(s).sum(-1))
        return np.exp(s - log_sums[..., None]), log_sums

    def log_sums(self, start: int, softcap: float) -> NDArray[np.float32]:
        q = self.q[start:].copy()
        log_sums_ = np.full(q.shape[:2], np.nan, np.float32)
        attention_rows(
            q, self.segments, start, np.empty_like(q), softmax=Softmax(SCALE, softcap),
            scratch=self.scratch, log_sums=log_sums_,
        )  # fmt: skip
        return log_sums_

    def sums(self, start: int, softcap: float = 0.0, cuts: tuple[int, ...] = ()) -> NDArray:
        room = -(-len(self.q) // 16) * 16
        sums, log_sums = np.zeros((self.kv_heads, room), np.float32), self.log_sums(start, softcap)
        for first, stop in zip((start, *cuts), (*cuts, len(self.q))):
            add_attention(
                self.q[first:stop].copy(), log_sums[first - start : stop - start],
                self.segments, first, sums, softmax=Softmax(SCALE, softcap), scratch=self.scratch,
            )  # fmt: skip
        return sums[:, : len(self.q)]


@pytest.mark.parametrize(
    ("n", "start", "softcap", "options"),
    [
        (1, 0, 0.0, {}),
        (17, 16, 0.0, {"group": 1}),
        (130, 0, 0.0, {}),
        (500, 301, 5.0, {"head_dim": 80}),
        (1030, 900, 0.0, {"kind": "q8_0", "head_dim": 256, "kv_heads": 1}),
        (2100, 1950, 0.0, {"kind": "q4_0", "group": 8, "head_dim": 96}),
        (1100, 1030, 0.0, {"kind": "q8_0", "kv_heads": 1, "head_dim": 576}),
    ],
)
def test_sums_are_those_of_the_softmax(n: int, start: int, softcap: float, options) -> None:
    cache = Cache(n, **options)
    rows, log_sums = cache.softmax(start, softcap)
    assert np.abs(cache.log_sums(start, softcap) - log_sums).max() < 1e-5
    want = rows.reshape(len(rows), cache.kv_heads, -1, n).sum((0, 2))
    got = cache.sums(start, softcap)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
    assert got.sum() == pytest.approx((n - start) * cache.q.shape[1], rel=1e-5)


def test_cuts_and_threads() -> None:
    """Threads change no bit, cuts change roundings."""
    cache, all_cuts = Cache(1200), ((), (), (1000, 1001, 1100))
    counts = with_threads(1, min(2, threads.max_threads()), 1)
    runs = [cache.sums(900, cuts=cuts) for cuts, _ in zip(all_cuts, counts, strict=True)]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_allclose(runs[0], runs[2], rtol=1e-5)


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
def test_what_moves_keeps_its_bytes(kind: str) -> None:
    n, stay = 1100, 300
    cache, rng = Cache(n, kind=kind), np.random.default_rng(1)
    rows = [np.sort(rng.choice(n, stay, replace=False)) for _ in range(cache.kv_heads)]
    rows[0][:5] = range(5)  # some stay where they are
    rows[0].sort()
    sources = np.array([np.unique(row)[: stay - 5] for row in rows], np.int32)
    move_slots(cache.segments, cache.positions, cache.layout, sources)
    k, v = read_kv(cache.segments, cache.layout, cache.kv_heads, 0, sources.shape[1])
    positions = cache.position_memory.view(np.uint32).reshape(-1, cache.kv_heads, SEGMENT)
    positions = positions.swapaxes(0, 1).reshape(cache.kv_heads, -1)[:, : sources.shape[1]]
    np.testing.assert_array_equal(positions, sources)
    for j, kept in enumerate(sources):
        np.testing.assert_array_equal(k[:, j], cache.k[kept, j])
        np.testing.assert_array_equal(v[:, j], cache.v[kept, j])


@pytest.mark.parametrize("kind", ["f16", "q4_0"])
def test_norms_are_those_of_keys_as_stored(kind: str) -> None:
    cache = Cache(1100, head_dim=80, kind=kind)
    centre = np.random.default_rng(0).standard_normal((2, 80), np.float32)
    for c, keys in ((None, cache.k), (centre, cache.k + centre)):
        norms = key_norms(cache.segments, cache.layout, 1100, cache.kv_heads, c)
        want = np.linalg.norm(keys.astype(np.float64), axis=-1).T
        np.testing.assert_allclose(norms, want, rtol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    cache = Cache(40)
    sums, some = np.zeros((2, 48), np.float32), np.zeros((40, 6), np.float32)
    for q, log_sums, start, out, words in (
        (cache.q, some[:39], 0, sums, "log_sums"),
        (cache.q[:, :4].copy(), some[:, :4].copy(), 0, sums, "of 4 heads of 64, expected"),
        (cache.q, some, 9, sums, "slots 9 to 48 lie outside"),
        (cache.q, some, 0, sums[:, :40].copy(), "multiple of 16"),
        (cache.q, some, 0, sums[:1], "1 KV heads, expected 2"),
    ):
        with pytest.raises(OpsError, match=words):
            add_attention(
                q, log_sums, cache.segments, start, out, softmax=Softmax(1.0), scratch=cache.scratch
            )
    for sources, words in (
        ([[1, 1], [0, 1]], "do not ascend"),
        ([[-1, 1], [0, 1]], "outside the 1024"),
        ([[0, 1024], [0, 1]], "outside the 1024"),
    ):
        with pytest.raises(OpsError, match=words):
            move_slots(cache.segments, cache.positions, cache.layout, np.array(sources, np.int32))
    with pytest.raises(OpsError, match="expected int32"):
        move_slots(cache.segments, cache.positions, cache.layout, np.zeros((2, 2), np.int64))
