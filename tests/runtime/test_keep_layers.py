"""One layer that evicts: NumPy of each method says which tokens stay and what they give."""

import numpy as np
import pytest
from numpy.typing import NDArray

import kvarn
from kvarn.jit import threads
from kvarn.models.config.layers import AttentionConfig
from kvarn.ops.attention import TileLayout
from kvarn.ops.attention.api import AttentionScratch
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.evict import Staging
from kvarn.ops.reference.attention import attention_reference, read_kv
from kvarn.ops.reference.evict import farthest_slot, ring_slot, signatures
from kvarn.runtime.attend import LayerView
from kvarn.runtime.attend.full import FullAttention
from kvarn.runtime.cache.slots import SlotCache
from kvarn.runtime.context.reading.prompt import CHUNK
from kvarn.runtime.keep import EvictingKeep, Ring, SlotParts
from kvarn.runtime.keep.scored.queries import Queries
from kvarn.runtime.store import SlotStore

METHODS = [kvarn.Streaming(40), kvarn.HashEvict(40)]
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 64


def by_name(keep: EvictingKeep) -> str:
    return keep.name


class Layer:
    """Attention over the slots of one layer, and its oracle in NumPy, over the same tokens."""

    def __init__(self, keep: EvictingKeep | None, n_slots: int, kinds: tuple[str, str]) -> None:
        self.layout = TileLayout(HEAD_DIM, *kinds)
        self.store = SlotStore(self.layout, [7, n_slots], KV_HEADS)
        self.store.reserve(n_slots)
        staging = Staging(self.layout, HEADS // KV_HEADS, KV_HEADS, n_slots, 512)
        scratch = AttentionScratch(HEADS, KV_HEADS, self.layout, max_rows=CHUNK, n_ctx=n_slots)
        config = AttentionConfig(
            *(HEADS, KV_HEADS, HEAD_DIM),
            window=None,
            rope=None,
            attention_scale=0.2,
            attention_softcap=0.0,
        )
        view = LayerView(1, 1, config, self.store, scratch, Softmax(0.2))
        queries = Queries((), HEADS, HEAD_DIM)
        parts = SlotParts(self.store, FullAttention(), staging, n_slots, queries)
        self.slots = keep.open_layer(view, parts) if keep else Ring(view, parts, sinks=0)
        self.cache = SlotCache(parts, [view] * 2, [self.slots] * 2)

    def read(self, q, k, v, start: int) -> NDArray[np.float32]:
        out = np.full_like(q, np.nan)
        self.cache.begin(start, len(q), prompt=True)
        self.cache(1, q, k, v, out)
        return out


def data(n: int, seed: int = 3):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((n, HEADS, HEAD_DIM)).astype(np.float32)
    k, v = rng.standard_normal((2, n, KV_HEADS, HEAD_DIM)).astype(np.float32)
    return q, k, v


def stored(k, v, layout: TileLayout):
    """Keys and values as an ordinary cache of all tokens would hold them."""
    store = SlotStore(layout, [len(k)], KV_HEADS)
    store.reserve(len(k))
    store.append(0, k, v, 0)
    return read_kv(store.segments(0), layout, KV_HEADS, 0, len(k))


def survivors(method: str, q, k, n_slots: int, planes) -> list[list[list[int]]]:
    """Positions in the slots of each KV head after each token: [token][head][slot]."""
    group, kept, history = HEADS // KV_HEADS, [[] for _ in range(KV_HEADS)], []
    query_bits, key_bits = signatures(q, planes), signatures(k, planes)
    for p in range(len(q)):
        for j, slots in enumerate(kept):
            if p < n_slots:
                slots.append(p)
            elif method == "streaming":
                slots[ring_slot(p, n_slots, 4)] = p
            else:
                here = query_bits[p, j * group : (j + 1) * group]
                victim = farthest_slot(here, key_bits[slots, j], np.array(slots), p, 4, 10)
                slots[victim] = p
        history.append([list(slots) for slots in kept])
    return history


def expected(q, k, v, history) -> NDArray[np.float64]:
    """Dense attention of each token over the survivors of its moment, KV head by KV head."""
    group, out = HEADS // KV_HEADS, np.empty(q.shape)
    for t, kept in enumerate(history):
        for j, positions in enumerate(kept):
            heads, rows = slice(j * group, (j + 1) * group), slice(j, j + 1)
            out[t, heads] = attention_reference(
                q[t : t + 1, heads],
                k[positions, rows],
                v[positions, rows],
                len(positions) - 1,
                softmax=Softmax(0.2),
            )[0]
    return out


@pytest.mark.parametrize("kinds", [("f16", "f16"), ("q8_0", "q4_0")])
@pytest.mark.parametrize("keep", METHODS, ids=by_name)
def test_survivors_and_outputs_are_the_papers(keep: EvictingKeep, kinds: tuple[str, str]) -> None:
    """One chunk that fills the slots and evicts, then tokens one by one."""
    n_slots, n = 40, 150
    layer, (q, k, v) = Layer(keep, n_slots, kinds), data(n)
    got = layer.read(q[:120], k[:120], v[:120], 0)
    planes = np.random.default_rng((0, 1)).standard_normal((16, HEAD_DIM)).astype(np.float32)
    sk, sv = stored(k, v, layer.layout)
    history = survivors(keep.name, q, sk, n_slots, planes)
    assert layer.slots.kept_positions(120).tolist() == history[119]
    for t in range(120, n):
        one = slice(t, t + 1)
        got = np.concatenate([got, layer.read(q[one], k[one], v[one], t)])
        assert layer.slots.kept_positions(t + 1).tolist() == history[t]
    assert np.abs(got - expected(q, sk, sv, history)).max() < 5e-6


@pytest.mark.parametrize("keep", METHODS, ids=by_name)
def test_cuts_and_threads_change_nothing(keep: EvictingKeep) -> None:
    """Threads change no bit, cuts change roundings; what stays is the same."""
    n_slots, n = 40, 110
    q, k, v = data(n)
    runs, before = [], threads.n_threads()
    for cuts, count in (((), 1), ((), min(2, threads.max_threads())), ((31, n_slots, 41, 77), 1)):
        threads.set_threads(count)
        layer, parts = Layer(keep, n_slots, ("f16", "f16")), []
        for start, stop in zip((0, *cuts), (*cuts, n)):
            parts.append(layer.read(q[start:stop], k[start:stop], v[start:stop], start))
        runs.append((np.concatenate(parts), layer.slots.kept_positions(n)))
    threads.set_threads(before)
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert np.abs(runs[0][0] - runs[2][0]).max() < 5e-6
    for _, kept in runs[1:]:
        np.testing.assert_array_equal(kept, runs[0][1])


def test_a_layer_with_a_window_keeps_its_window() -> None:
    window, n = 40, 130
    layer, (q, k, v) = Layer(None, window, ("f16", "q8_0")), data(n)
    sk, sv = stored(k, v, layer.layout)
    want = attention_reference(q, sk, sv, 0, softmax=Softmax(0.2), window=window)
    assert np.abs(layer.read(q, k, v, 0) - want).max() < 5e-6
    assert set(layer.slots.kept_positions(n)[0].tolist()) == set(range(n - window, n))
