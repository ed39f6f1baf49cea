"""Contexts of models whose layers carry a state: cut, drafted, stopped, marked."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.jit.launch.launcher import Stopped
from kvarn.models.layer import Layer
from kvarn.runtime.context import Context
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.states import States

from .counting import N_CTX, N, after, counted


def test_calls_of_any_size_give_the_same_states(model: kvarn.Model, ids: list[int]) -> None:
    results = []
    for borders in ([0, 1300], [0, 1, 2, 70, 511, 513, 1299, 1300], [0, 800, 1300]):
        with model.context(N_CTX) as context:
            for first, stop in pairwise(borders):
                logits = context.prefill(ids[first:stop])
            results.append((logits.copy(), context._cache.store.states.memory.copy()))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_context_returns_to_its_mark(model: kvarn.Model, ids: list[int]) -> None:
    greedy = {"max_tokens": 8, "sampler": kvarn.Sampler(temp=0), "stop_at_eos": False}
    with model.context(N_CTX) as context:
        context.prefill(ids[:100])
        context.decode(5)
        mark, logits = context.mark(), context.logits.copy()
        answer = list(context.generate_ids(**greedy))
        context.return_to(mark)
        np.testing.assert_array_equal(context.logits, logits)
        assert list(context.generate_ids(**greedy)) == answer


@pytest.mark.parametrize("to", [0, 1, 500, 1025, 1600, 2050, N - 1])
def test_cut_back_and_read_on_is_read_at_once(to: int, model: kvarn.Model, ids: list[int]) -> None:
    with model.context(N_CTX) as context:
        context.prefill(ids)
        with counted(model) as counts:
            context.truncate(to)
            context.prefill(ids[to:])
        assert sum(counts) - (N - to) <= max(1024, N - to)
        np.testing.assert_array_equal(context.logits, after(model, ids))


def test_generated_tokens_are_read_again_as_they_were(model: kvarn.Model, ids: list[int]) -> None:
    generated = [5, 9, 11, 4, 8]
    with model.context(N_CTX) as context:
        context.prefill(ids)
        for token in [*generated, 17, 23]:
            context.decode(token)
        context.truncate(N + len(generated))
        np.testing.assert_array_equal(context.logits, after(model, ids, generated))


def test_drafts_that_are_not_taken_leave_no_trace(model: kvarn.Model, ids: list[int]) -> None:
    with model.context(N_CTX) as context:
        context.prefill(ids[:700])
        context.decode(5, [9, 10, 12])
        context.decode(9)  # taken
        logits = context.decode(11).copy()  # not the 10 that was drafted
        np.testing.assert_array_equal(logits, after(model, ids[:700], [5, 9, 11]))


def test_a_stopped_pass_leaves_no_trace(
    model: kvarn.Model, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = np.zeros(1, np.int64)
    known = Layer.finish

    def finish(self: Layer, b: Any) -> None:
        if self.index == 1:
            flag[0] = 1
        known(self, b)

    with model.context(N_CTX) as context:
        context.stop_at(flag.ctypes.data)
        context.prefill(ids[:600])
        monkeypatch.setattr(Layer, "finish", finish)
        with pytest.raises(Stopped):
            context.prefill(ids[600:])
        assert context.tokens == ids[:600]
        monkeypatch.undo()
        flag[0] = 0
        context.prefill(ids[600:])
        np.testing.assert_array_equal(context.logits, after(model, ids))


def test_reading_again_is_not_stopped_halfway(
    model: kvarn.Model, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would leave fewer tokens: the pass after it is stopped."""
    flag, known = np.zeros(1, np.int64), Layer.finish

    def finish(self: Layer, b: Any) -> None:
        flag[0] = 1
        known(self, b)

    with model.context(N_CTX) as context:
        context.prefill(ids[:700])
        context.decode(5, [9, 10, 12])
        context.stop_at(flag.ctypes.data)
        monkeypatch.setattr(Layer, "finish", finish)
        with pytest.raises(Stopped):
            context.decode(11)
        assert context.tokens == [*ids[:700], 5]


KEEPS = {"nacl": kvarn.NaCl, "hashevict": kvarn.HashEvict, "streaming": kvarn.Streaming}


@pytest.mark.parametrize("keep", KEEPS)
def test_contexts_that_evict_are_marked_and_saved(
    keep: str, model: kvarn.Model, ids: list[int], tmp_path: Path
) -> None:
    method, pack = KEEPS[keep]("300"), tmp_path / "pack"
    with model.context(N_CTX, keep=method, store=kvarn.Disk(pack)) as context:
        context.prefill(ids[:900])
        mark = context.mark()
        first = [context.decode(token).copy() for token in (5, 9)]
        context.return_to(mark)
        np.testing.assert_array_equal([context.decode(token) for token in (5, 9)], first)
        context.decode(11)
    assert verify(pack) == []
    with model.context(N_CTX, keep=method, store=kvarn.Disk(pack)) as context:
        again = context.decode(4).copy()
    with model.context(N_CTX, keep=method) as context:
        context.prefill(ids[:900])
        for token in (5, 9, 11):
            context.decode(token)
        np.testing.assert_array_equal(context.decode(4), again)


@pytest.mark.parametrize("keep", [kvarn.Streaming(90), kvarn.H2O(90), kvarn.SnapKV(90)], ids=str)
def test_contexts_that_evict_read_each_token_once(
    model: kvarn.Model, ids: list[int], keep: kvarn.Keep
) -> None:
    with counted(model) as read, model.context(700, keep=keep) as context:
        context.prefill((ids * 600)[:600])
        for token in ids[:5]:
            context.decode(token)
    assert sum(read) == 605


@pytest.mark.parametrize("keep", [kvarn.KeepAll(), kvarn.Streaming(90), kvarn.H2O(90)], ids=str)
def test_a_mark_holds_no_states_of_a_draft(
    model: kvarn.Model, ids: list[int], keep: kvarn.Keep
) -> None:
    """A draft that nobody took, of a context that is marked and then goes on."""
    found = []
    for draft in ([], ids[50:53]):
        with model.context(300, keep=keep) as context:
            context.prefill(ids[:40])
            context.decode(ids[40], draft)
            mark = context.mark()
            context.decode(ids[41])
            context.return_to(mark)
            found.append(context.decode(ids[42]).copy())
    np.testing.assert_array_equal(*found)


def test_a_mark_holds_the_states_where_no_checkpoint_has_room(
    model: kvarn.Model, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(States.__init__, "__defaults__", (0,))
    with model.context(N_CTX, keep=kvarn.Streaming("300")) as context:
        context.prefill(ids[:900])
        mark = context.mark()
        first = [context.decode(token).copy() for token in ids[:130]]
        with counted(model) as counts:
            context.return_to(mark)
            again = [context.decode(token).copy() for token in ids[:130]]
        np.testing.assert_array_equal(again, first)
        assert counts == [1] * 130


def test_contexts_are_filled_for_measurements(model: kvarn.Model, ids: list[int]) -> None:
    with model.context(N_CTX) as context:
        context.prefill(ids[:100])
        context.fill(2000)
        assert np.isfinite(context.decode(5)).all()


@pytest.mark.parametrize("prefill", ["sparse", "blocks"])
def test_sparse_methods_act_on_the_layers_with_keys(
    prefill: str, model: kvarn.Model, ids: list[int]
) -> None:
    methods: dict[str, Callable[[], Any]] = {
        "sparse": lambda: kvarn.SparsePrefill(k=64, from_=1024),
        "blocks": lambda: kvarn.BlocksPrefill(size=1024),
    }
    attend = kvarn.TopK(budget="64", sink=4, window=16)
    with model.context(N_CTX, attend, prefill=methods[prefill]()) as context:
        assert_near(context, ids, after(model, ids))
        assert len(context.stats.layers) == model.config.n_kv_layers


def assert_near(context: Context, ids: list[int], expected: np.ndarray) -> None:
    logits = context.prefill(ids)
    assert np.corrcoef(logits, expected)[0, 1] > 0.9
