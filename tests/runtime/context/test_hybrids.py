"""Contexts of models whose layers carry states: going back, marks, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.runtime.context.prompt import ContextError
from kvarn.runtime.keep import KeepError
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.store import StoreError

from ...models import tiny_cases, tiny_models

GREEDY = kvarn.Sampler(temp=0)
N_CTX = 3000


@pytest.fixture(scope="module", params=["qwen35", "qwen3next", "lfm2"])
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    tiny = next(case for case in tiny_cases.CASES if case.name == request.param)
    tiny_models.write(path, tiny, 1)
    return load(path)


def _ids(n: int) -> list[int]:
    numbers: list[int] = np.random.default_rng(n).integers(3, 97, n).tolist()
    return numbers


def _states(context: kvarn.Context) -> list[Any]:
    states = context._cache.states
    assert states is not None
    return [array.copy() for layer in states.layers for array in layer]


def test_calls_of_any_size_give_the_same_state(hybrid: Model) -> None:
    ids, results = _ids(1300), []
    for borders in ([0, 1300], [0, 1, 2, 70, 511, 513, 1299, 1300], [0, 800, 1300]):
        context = hybrid.context(N_CTX)
        for first, stop in pairwise(borders):
            logits = context.prefill(ids[first:stop])
        results.append([logits.copy(), *_states(context)])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_context_that_was_cut_goes_on_as_if_it_had_read_no_more(hybrid: Model) -> None:
    ids, context = _ids(1700), hybrid.context(N_CTX)
    context.prefill(ids)
    list(context.generate_ids(max_tokens=30, sampler=GREEDY, stop_at_eos=False))
    for n in (1650, 1200, 700, 699, 1):
        context.truncate(n)
        fresh = hybrid.context(N_CTX)
        fresh.prefill(ids[:n])
        np.testing.assert_array_equal(context.logits, fresh.logits)
        for a, b in zip(_states(context), _states(fresh), strict=True):
            np.testing.assert_array_equal(a, b)
        other = [7, 8, *_ids(20)]
        np.testing.assert_array_equal(context.prefill(other), fresh.prefill(other))
        context.truncate(n)


def test_a_context_returns_to_its_mark(hybrid: Model) -> None:
    context = hybrid.context(N_CTX)
    context.prefill(_ids(100))
    list(context.generate_ids(max_tokens=5, sampler=GREEDY, stop_at_eos=False))
    mark, logits, states = context.mark(), context.logits.copy(), _states(context)
    answer = list(context.generate_ids(max_tokens=8, sampler=GREEDY, stop_at_eos=False))
    context.return_to(mark)
    np.testing.assert_array_equal(context.logits, logits)
    for a, b in zip(_states(context), states, strict=True):
        np.testing.assert_array_equal(a, b)
    again = list(context.generate_ids(max_tokens=8, sampler=GREEDY, stop_at_eos=False))
    assert again == answer


def test_nothing_is_drafted(hybrid: Model) -> None:
    context = hybrid.context(N_CTX)
    context.prefill([5, 6, 7] * 10)
    assert context.draft_room == 0
    with pytest.raises(ContextError, match="a draft of 1 tokens is too long"):
        context.decode(5, [6])


def test_what_holds_no_states_refuses(hybrid: Model, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="layers that carry a state beside K and V, which packs"):
        hybrid.context(N_CTX, store=kvarn.Disk(tmp_path / "pack"))
    assert not (tmp_path / "pack").exists()
    with pytest.raises(KeepError, match="keep streaming cannot evict there"):
        hybrid.context(N_CTX, keep=kvarn.Streaming(64))


def test_a_context_can_be_filled(hybrid: Model) -> None:
    context = hybrid.context(N_CTX)
    context.prefill(_ids(40))
    context.fill(2100)
    assert np.isfinite(context.decode(5)).all() and len(context.tokens) == 2101
