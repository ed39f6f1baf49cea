"""Sparse methods over the slots of contexts that evict: NumPy's choice among the keys as kept."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.ops.reference.attention import gathered_reference
from kvarn.runtime.attend import Attend, Full, Hash, TopK
from kvarn.runtime.attend.selections import Selections
from kvarn.runtime.keep import EvictingKeep
from kvarn.runtime.model import Model

from ..reading import ids_of
from .slots import SlotSpy, check, chosen

COMMON = {"budget": 16, "sink": 4, "window": 12}
FLAT, SKETCH = TopK(index="flat", **COMMON), TopK(**COMMON)
HASH = Hash(**COMMON, encoders="simhash", rerank=1)
RERANKED = Hash(**COMMON, encoders="simhash", rerank=3)
KEEPS = [kvarn.Streaming(100), kvarn.HashEvict(100)]
N = 260


@pytest.fixture(params=KEEPS, ids=lambda keep: keep.name)
def keep(request) -> EvictingKeep:
    return request.param


@pytest.mark.parametrize("method", [FLAT, HASH, RERANKED], ids=["flat", "hash", "reranked"])
def test_a_step_chooses_among_the_keys_as_kept(model: Model, keep: EvictingKeep, method) -> None:
    """While slots are filled, when they are full, and after prompts that evict."""
    spy, ids = SlotSpy(method), ids_of(model, N)
    context = model.context(1000, spy, keep)
    context.prefill(ids[:90])
    for token in ids[90:120]:  # of 100 slots
        context.decode(token)
    context.prefill(ids[120:180])
    context.prefill(ids[180:181])
    for token in ids[181:200]:
        context.decode(token)
    assert len(spy.steps) == 2 * (30 + 19)
    assert {step.stored for step in spy.steps} == {*range(91, 101)}
    for step in spy.steps:
        assert step.positions.max() == step.position
        check(method, model, step)
    assert not np.array_equal(*spy.steps[-1].positions) or keep.name == "streaming"
    reads = spy.inner.reads[0]
    assert (reads.steps, reads.full_steps) == (49, 0)
    assert reads.attended_tokens <= 49 * 2 * (4 + 12 + 16)


def test_sketches_of_slots_are_those_of_their_keys(model: Model, keep: EvictingKeep) -> None:
    """What was rewritten slot by slot, against an index made at once; so with signatures."""
    for method in (SKETCH, HASH):
        context = model.context(1000, method, keep)
        context.prefill(ids_of(model, N))
        for token in ids_of(model, 40):
            context.decode(token)
        bound = context._cache.attend
        column = bound._index.column
        for i, view in enumerate(context._cache.layers):
            assert column.filled[i] == 100
            before = [bytes_of(c, i) for c in columns_of(bound._index)]
            bound._index.extend(view, 0, 100)
            assert before == [bytes_of(c, i) for c in columns_of(bound._index)]
            assert any(map(any, before))


def columns_of(index) -> Iterator:
    yield index.column
    if hasattr(index, "_factors"):
        yield index._factors


def bytes_of(column, layer: int) -> bytes:
    import ctypes

    (address,) = column.segments(layer).tolist()
    return ctypes.string_at(address, column.item_bytes * 1024 * 2)


@pytest.mark.parametrize("method", [FLAT, SKETCH, HASH], ids=["flat", "sketch", "hash"])
def test_a_budget_of_all_slots_gives_the_bits_of_full(model: Model, keep, method) -> None:
    def logits(attend: Attend) -> np.ndarray:
        with model.context(1000, attend, keep) as context:
            context.prefill(ids_of(model, N))
            return np.stack([context.decode(token).copy() for token in ids_of(model, 8)])

    want = logits(Full())
    np.testing.assert_array_equal(logits(replace(method, budget=100)), want)
    assert not np.array_equal(logits(method), want)


# Sketches over slots are from zero, those of all tokens from a centre.
@pytest.mark.parametrize("method", [FLAT, HASH], ids=["flat", "hash"])
def test_slots_that_are_not_full_choose_as_keep_all_does(model: Model, keep, method) -> None:
    ids, roomy = ids_of(model, 220), replace(keep, budget=300)
    one, other = (model.context(1000, method, k) for k in (kvarn.KeepAll(), roomy))
    for context in (one, other):
        context.prefill(ids[:200])
    for token in ids[200:]:
        np.testing.assert_array_equal(one.decode(token), other.decode(token))


@pytest.mark.parametrize("method", [FLAT, SKETCH, HASH], ids=["flat", "sketch", "hash"])
def test_rows_of_a_draft_choose_one_by_one(model: Model, keep: EvictingKeep, method) -> None:
    """Drafts end where slots are full; of rejected rows nothing stays."""
    ids = ids_of(model, 110)
    one, rows = (model.context(1000, method, keep) for _ in range(2))
    for context in (one, rows):
        context.prefill(ids[:90])
    rows.decode(1, [2, 3, 4])
    rows.truncate(90)
    want = np.stack([one.decode(token).copy() for token in ids[90:95]])
    got = [rows.decode(ids[90], ids[91:95]).copy()]
    assert rows.reads_ahead(ids[91])
    got += [rows.decode(token).copy() for token in ids[91:95]]
    np.testing.assert_array_equal(got, want)
    assert [r.steps for r in rows.stats.layers] == [9, 9]
    for token in ids[95:]:
        one.decode(token)
        rows.decode(token)
    np.testing.assert_array_equal(one.logits, rows.logits)
    np.testing.assert_array_equal(one.kept_positions(1), rows.kept_positions(1))


@pytest.mark.parametrize("method", [SKETCH, HASH], ids=["sketch", "hash"])
def test_a_snapshot_is_indexed_when_it_is_opened(
    model: Model, tmp_path: Path, keep: EvictingKeep, method
) -> None:
    """Written with another method, whose tokens evict after a first index: nothing of it stays."""
    ids, store = ids_of(model, N + 30), kvarn.Disk(tmp_path / "pack")
    plain = model.context(1000, Full(), keep)
    plain.prefill(ids[:N])
    with model.context(1000, method, keep, store) as context:
        context.prefill(ids[:200])
    with model.context(1000, Full(), keep, store) as context:
        context.prefill(ids[200:N])
    memory = model.context(1000, method, keep)
    memory.prefill(ids[:200])
    memory.prefill(ids[200:N])
    done: list[tuple[int, int]] = []
    for whole in (True, False):  # at once, or with the first token
        read_only = replace(store, read_only=True)
        with model.context(1000, method, keep, read_only) as context:
            if whole:
                context.index(lambda *progress: done.append(progress))
                memory_logits = [memory.decode(token).copy() for token in ids[N:]]
            got = [context.decode(token).copy() for token in ids[N:]]
            np.testing.assert_array_equal(got, memory_logits)
    assert done == [(1, 2), (2, 2)]


def test_an_interrupted_context_starts_again(model: Model, keep: EvictingKeep) -> None:
    """Cut to nothing and read anew: no slot keeps an index of what it held."""
    ids = ids_of(model, N)
    for method in (SKETCH, HASH):
        fresh, used = (model.context(1000, method, keep) for _ in range(2))
        used.prefill(ids_of(model, 150))
        used.decode(1)
        used.truncate(0)
        for context in (fresh, used):
            context.prefill(ids)
        for token in ids[:5]:
            np.testing.assert_array_equal(used.decode(token), fresh.decode(token))


def test_selections_are_recorded_by_position(
    model: Model, keep: EvictingKeep, tmp_path: Path
) -> None:
    spy, ids, path = SlotSpy(FLAT), ids_of(model, N + 3), tmp_path / "selections"
    context = model.context(1000, spy.method, keep)
    spied = model.context(1000, spy, keep)
    for one in (context, spied):
        one.prefill(ids[:N])
    with context.recording(path):
        for token in ids[N:]:
            context.decode(token)
            spied.decode(token)
    for layer, steps in enumerate(Selections.read(path).layers):
        mine = [step for step in spy.steps if step.layer == layer]
        assert len(steps) == len(mine) == 3
        for step, found in zip(mine, steps):
            assert found.stored == step.position + 1
            want = chosen(FLAT, model, step)
            for slots, positions, got in zip(want, step.positions, found.lists):
                np.testing.assert_array_equal(np.sort(positions[slots]), got)


def test_the_probe_looks_at_what_is_in_the_slots(model: Model, keep: EvictingKeep) -> None:
    spy = SlotSpy(replace(FLAT, probe=1))
    context = model.context(1000, spy, keep)
    context.prefill(ids_of(model, N))
    context.decode(1)
    for step in spy.steps:
        masses, errors = [], []
        lists = chosen(FLAT, model, step)
        for h in range(4):
            scores = step.softmax.scale * (step.keys[:, h // 2].astype(np.float64) @ step.q[0, h])
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            masses.append(weights[lists[h // 2]].sum())
            full = weights @ step.values[:, h // 2]
            errors.append(np.linalg.norm(step.out[0, h] - full) / np.linalg.norm(full))
        figures = spy.inner.reads[step.layer].as_dict()
        assert figures["covered_mass"] == pytest.approx(np.mean(masses), rel=1e-4)
        assert figures["output_error"] == pytest.approx(np.mean(errors), rel=1e-3)


def test_layers_that_read_everything(model: Model, keep: EvictingKeep) -> None:
    context = model.context(1000, replace(SKETCH, dense_layers="1"), keep)
    context.prefill(ids_of(model, N))
    context.decode(1)
    assert [(r.steps, r.full_steps) for r in context.stats.layers] == [(1, 0), (0, 1)]


def test_the_slots_that_are_written_are_those_that_are_indexed(model: Model, keep) -> None:
    """Over 1,024 slots, in two segments; flat's choice needs no index, that of sketches does."""
    large = replace(keep, budget=1100)
    method = TopK(budget=64, sink=4, window=12)
    spy, ids = SlotSpy(method), ids_of(model, 1400)
    context = model.context(4000, spy, large)
    context.prefill(ids[:1300])
    for token in ids[1300:1320]:
        context.decode(token)
    found = []
    for step in spy.steps:
        exact = chosen(replace(method, index="flat"), model, step)
        room, counts = np.zeros((2, 1100), np.uint32), np.array([len(x) for x in exact])
        for row, tokens in zip(room, exact):
            row[: len(tokens)] = tokens
        want = gathered_reference(
            step.q, step.keys, step.values, room, counts, softmax=step.softmax
        )
        found.append(np.abs(step.out - want).max() < 0.5 * np.abs(want).max())
    assert np.mean(found) > 0.9
