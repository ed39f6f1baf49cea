"""Contexts that evict: what they hold, what is refused, and where they equal other contexts."""

import signal
import threading
import time
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import pytest

import kvarn
from kvarn.runtime.attend import Attend, BoundAttend
from kvarn.runtime.context.reading.prompt import CHUNK, ContextError
from kvarn.runtime.keep import KEEPS, EvictingKeep, KeepError
from kvarn.runtime.keep.slots import ReplacingSlots
from kvarn.runtime.model import Model

from ..kv_layers import with_kv_layers
from .reading import ids_of

GREEDY = kvarn.Sampler(temp=0)
METHODS = [kvarn.Streaming(40), kvarn.HashEvict(40)]


def by_name(keep: EvictingKeep) -> str:
    return keep.name


@pytest.mark.parametrize("keep", METHODS, ids=by_name)
def test_a_full_context_goes_on(tiny: Model, keep: EvictingKeep) -> None:
    """A prompt of many times the budget, then an answer; memory follows the slots."""
    ids = ids_of(tiny, 700)
    context = tiny.context(1 << 20, keep=keep)
    held = []
    for start in (0, 350):
        context.prefill(ids[start : start + 350])
        held.append(context.n_bytes)
    assert held[0] == held[1]
    generation = context.generation((), 10, GREEDY)
    assert len(list(generation.ids(stop_at_eos=False))) == 10
    for layer in range(tiny.config.n_layers):
        kept = context.kept_positions(layer)
        assert kept.shape == (tiny.config.n_kv_heads, 40)
        for row in kept.tolist():
            assert len(set(row)) == 40
            assert {0, 1, 2, 3, *range(699, 709)} <= set(row)


@pytest.mark.parametrize("keep", METHODS, ids=by_name)
def test_room_for_all_gives_the_bits_of_all(tiny: Model, keep: EvictingKeep) -> None:
    ids = ids_of(tiny, 600)
    plain = tiny.context(1024)
    roomy = tiny.context(1024, keep=replace(keep, budget=1024))
    np.testing.assert_array_equal(roomy.prefill(ids), plain.prefill(ids))
    # Slots that are not full yet: the same bits up to the last free one.
    slots = tiny.context(1024, keep=replace(keep, budget=600))
    np.testing.assert_array_equal(slots.prefill(ids), plain.logits)
    np.testing.assert_array_equal(slots.kept_positions(0), plain.kept_positions(0))
    assert not np.array_equal(slots.decode(5), plain.decode(5))


@pytest.mark.parametrize("keep", METHODS, ids=by_name)
def test_prompts_cut_at_chunk_borders_give_the_same_bits(tiny: Model, keep: EvictingKeep) -> None:
    ids = ids_of(tiny, CHUNK + 60)
    whole, cut = (tiny.context(1024, keep=replace(keep, budget=200)) for _ in range(2))
    cut.prefill(ids[:CHUNK])
    np.testing.assert_array_equal(cut.prefill(ids[CHUNK:]), whole.prefill(ids))
    np.testing.assert_array_equal(cut.kept_positions(1), whole.kept_positions(1))


def test_streaming_reads_what_a_mask_of_sinks_and_window_lets_through(tiny: Model) -> None:
    """Without sinks, streaming is a window: the logits of a model whose layers have one."""
    ids = ids_of(tiny, 300)
    windowed = with_windows(tiny, 50, 50).context(512).prefill(ids)
    streaming = tiny.context(512, keep=kvarn.Streaming(50, sinks=0)).prefill(ids)
    assert np.abs(windowed - streaming).max() < 2e-3 * np.abs(windowed).max()


def with_windows(model: Model, *windows: int | None) -> Model:
    layers = zip(model.config.kv_layers, windows)
    changed = copy(model)
    changed.config = with_kv_layers(
        model.config, (replace(layer, window=window) for layer, window in layers)
    )
    return changed


@pytest.mark.parametrize("keep", METHODS, ids=by_name)
def test_layers_with_windows_are_left_alone(tiny: Model, keep: EvictingKeep) -> None:
    ids, model = ids_of(tiny, 300), with_windows(tiny, 24, None)
    plain = model.context(512).prefill(ids)
    context = model.context(512, keep=replace(keep, budget=310))
    assert np.abs(context.prefill(ids) - plain).max() < 2e-3 * np.abs(plain).max()
    assert set(context.kept_positions(0)[0].tolist()) == set(range(276, 300))
    context.prefill(ids_of(tiny, 100))
    assert context.kept_positions(0).shape[1] == 24
    assert context.kept_positions(1).shape[1] == 310


@pytest.mark.parametrize("keep", METHODS, ids=by_name)
def test_an_interrupted_step_is_finished(
    tiny: Model, keep: EvictingKeep, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, write_staged = ids_of(tiny, 60), ReplacingSlots.write_staged

    def interrupted(slots: ReplacingSlots, position: int) -> None:
        write_staged(slots, position)
        if slots.layer == 0:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.05)

    whole, cut = (tiny.context(80, keep=keep) for _ in range(2))
    for context in (whole, cut):
        context.prefill(ids[:50])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ReplacingSlots, "write_staged", interrupted)
        cut.decode(ids[50])
    whole.decode(ids[50])
    assert cut.tokens == ids[:51]
    for token in ids[51:]:
        np.testing.assert_array_equal(cut.logits, whole.logits)
        for context in (whole, cut):
            context.decode(token)
    for layer in range(tiny.config.n_layers):
        np.testing.assert_array_equal(cut.kept_positions(layer), whole.kept_positions(layer))


@pytest.mark.parametrize("keep", METHODS, ids=by_name)
def test_cutting_back_ends_where_eviction_begins(tiny: Model, keep: EvictingKeep) -> None:
    ids = ids_of(tiny, 60)
    context = tiny.context(256, keep=keep)
    context.prefill(ids[:30])
    context.truncate(20)
    plain = tiny.context(256)
    plain.prefill(ids[:30])
    plain.truncate(20)
    np.testing.assert_array_equal(context.logits, plain.logits)
    context.prefill(ids[20:])
    assert [n for n in range(61) if context.can_truncate(n)] == [0, 60]
    with pytest.raises(ContextError, match=r"60 tokens to 59: .* evicted; cut it to 0"):
        context.truncate(59)
    before = context.prefill([1]).copy()
    context.truncate(0)
    context.prefill(ids[:20])
    context.prefill(ids[20:])
    assert np.abs(context.prefill([1]) - before).max() < 2e-3 * np.abs(before).max()


def test_the_estimate_follows_the_slots(tiny: Model) -> None:
    with pytest.raises(kvarn.KvarnError, match=r"keeping 429,496,730 tokens .* budget of keep"):
        tiny.context(2**31 - 1, keep=kvarn.Streaming("20%"))
    assert tiny.context(10**9, keep=kvarn.HashEvict(100)).n_bytes == 0


@dataclass(frozen=True)
class InOrder(Attend, BoundAttend):
    name = "inorder"

    def open(self, model, store, n_ctx):
        return self

    def __call__(self, layer, q, start, out) -> None:
        raise AssertionError


def test_combinations_that_cannot_be_are_refused(tiny: Model) -> None:
    with pytest.raises(KeepError, match="streaming cannot be combined with inorder attention"):
        tiny.context(64, attend=InOrder(), keep=kvarn.Streaming(20))
    tiny.context(64, attend=InOrder(), keep=kvarn.Streaming(64))
    for keep, least in ((kvarn.Streaming, 5), (kvarn.HashEvict, 15)):
        keep(least)
        with pytest.raises(KeepError, match=f"{least - 1} tokens leaves .* at least {least}"):
            keep(least - 1)
        with pytest.raises(KeepError, match="2% of 64 tokens leaves nothing"):
            tiny.context(64, keep=keep("2%"))
    for budget in ("0", "0%", "101%", "x", "-3", "1.5", "%", 0, ""):
        with pytest.raises(
            KeepError, match=r"a share \(more than 0% to 100%\) or a count of tokens"
        ):
            kvarn.Streaming(budget)
    wrongs = (
        {"bits": 3},
        {"bits": 65},
        {"recent": -1},
        {"sinks": -1},
        {"seed": -1},
        {"against": "v"},
    )
    for wrong in wrongs:
        with pytest.raises(KeepError, match="expected"):
            kvarn.HashEvict(**wrong)
    with pytest.raises(KeepError, match="sinks is -1"):
        kvarn.Streaming(20, sinks=-1)


def test_budgets_are_numbers_or_shares() -> None:
    assert [kvarn.Streaming(b).n_slots(1000) for b in ("20%", "7%", "0.51%", 300)] == [
        200,
        70,
        6,
        300,
    ]
    scored = ["h2o", "l2norm", "nacl", "random", "snapkv", "tova"]
    assert sorted(KEEPS) == sorted(["all", "hashevict", "streaming", *scored])
