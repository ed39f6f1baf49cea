"""Tokens of sparse methods that are recorded: the bits and counts of those that are not."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.jit import threads
from kvarn.runtime.attend import Hash, Sparse, TopK
from kvarn.runtime.attend.sparse import SparseAttention
from kvarn.runtime.context import Context
from kvarn.runtime.engine import on_engine
from kvarn.runtime.model import Model

from .. import reading

COMMON = {"budget": "4%", "sink": 4, "window": 16}


@dataclass(frozen=True)
class Uneven(TopK):
    """Each layer takes another number of tokens."""

    def shares(self, n_layers: int) -> list[float]:
        return [0.5 + i for i in range(n_layers)]


METHODS = [
    TopK(**COMMON),
    TopK(**COMMON, dense_layers="0"),
    Uneven(**COMMON),
    TopK(index="flat", **COMMON),
    TopK(tail="means", **COMMON),
    TopK(tail="means", budget_unit="query-head", **COMMON),
    Hash(**COMMON),
    Hash(**COMMON, rerank=4),
    Hash(**COMMON, tail="means"),
]


@contextmanager
def unrecorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(SparseAttention, "expect", lambda *_: None)
        yield


def counted(context: Context) -> list[dict]:
    layers = [layer.as_dict() for layer in context.stats.layers]
    return [{k: v for k, v in one.items() if not k.endswith("_seconds")} for one in layers]


def decoded(context: Context, ids: list[int]) -> list[np.ndarray]:
    return [context.decode(token).copy() for token in ids]


def read(context: Context, ids: list[int]) -> list[np.ndarray]:
    """Tokens around the ends of two segments, one of them again after a cut, in other threads, and
    after a part of the centre was read again."""
    before = on_engine(threads.n_threads)
    on_engine(threads.set_threads, threads.max_threads())
    context.prefill(ids[:2035])
    rows = decoded(context, ids[2035:2060])
    context.truncate(2041)
    on_engine(threads.set_threads, 1)
    rows += decoded(context, ids[2100:2110])
    on_engine(threads.set_threads, before)
    context.truncate(1500)
    context.prefill(ids[1600:2040])
    context.decode(ids[0], ids[1:3])
    context.decode(ids[1])
    rows += decoded(context, ids[10:20])
    context.truncate(600)
    context.prefill(ids[700:1300])  # another centre in the same places
    rows += decoded(context, ids[30:130])
    context.truncate(600)
    context.prefill(ids[700:1120])
    return rows + decoded(context, ids[:20])


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_recorded_tokens_have_the_bits_of_others(
    model: Model, method: Sparse, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = reading.ids_of(model, 2200)
    with unrecorded(monkeypatch):
        plain = model.context(2200, method)
        want = read(plain, ids)
    states, expect = [], SparseAttention.expect

    def seen(attend: SparseAttention, start: int, n_tokens: int, prompt: bool) -> object:
        state = expect(attend, start, n_tokens, prompt)
        if not prompt:
            states.append(state)
        return state

    monkeypatch.setattr(SparseAttention, "expect", seen)
    context = model.context(2200, method)
    got = read(context, ids)
    assert len(states) > 60 and states.count(None) <= 4  # at the ends of segments
    np.testing.assert_array_equal(got, want)
    assert counted(context) == counted(plain)
    for layer in context.stats.layers:
        assert (layer.index_seconds > 0) == (layer.attention_seconds > 0) == (layer.steps > 0)


@pytest.mark.parametrize("method", [METHODS[0], METHODS[5], METHODS[6]], ids=str)
def test_what_recorded_tokens_index_is_saved(model: Model, method: Sparse, tmp_path: Path) -> None:
    ids = reading.ids_of(model, 2100)
    with model.context(2100, method) as context:
        context.prefill(ids[:2040])
        want = decoded(context, ids[2040:])
    with model.context(2100, method, store=kvarn.Disk(tmp_path / "p")) as context:
        context.prefill(ids[:2040])
        got = decoded(context, ids[2040:2060])
    with model.context(2100, method, store=kvarn.Disk(tmp_path / "p")) as context:
        got += decoded(context, ids[2060:])
        assert context._cache.graphs
        context.store.check_saved()
    np.testing.assert_array_equal(got, want)


def test_a_recorded_token_takes_few_calls_of_python() -> None:
    model, calls = kvarn.load(), 0

    def count(frame, event: str, argument) -> None:
        nonlocal calls
        calls += event == "call"

    def decode(context: Context) -> int:
        nonlocal calls
        calls = 0
        sys.setprofile(count)
        try:
            context.decode(7)
        finally:
            sys.setprofile(None)
        return calls

    counts = []
    for method in (None, TopK()):
        with model.context(2100, method) as context:
            context.prefill(reading.ids_of(model, 1500))
            context.decode(5)
            counts.append(on_engine(decode, context))
    assert counts[0] <= 80 and counts[1] <= 125
